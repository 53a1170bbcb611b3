"""Clients of an application in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from jax_transformer.serving.app import make_app
from jax_transformer.serving.service import Service
from jax_transformer.serving.speech_service import SpeechService

Ask = Callable[[httpx.AsyncClient], Awaitable[Any]]


def asked(service: Service | SpeechService, *asks: Ask) -> list[Any]:
    """Returns the results of functions of a client that all run at once."""

    async def run() -> list[Any]:
        transport = httpx.ASGITransport(make_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            while service.state == "warming up":
                await asyncio.sleep(0.01)
            return await asyncio.gather(*(ask(client) for ask in asks))

    return asyncio.run(run())
