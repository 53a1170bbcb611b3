"""Routes of a server that translates and scores texts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from jax_transformer.serving.exchange import json_answer, read_json, text_of, unless_gone, until
from jax_transformer.serving.limits import Limits, Refusal
from jax_transformer.serving.requests import ScoreRequest, TranslateRequest, read_request
from jax_transformer.serving.schema import answers, body_schema
from jax_transformer.serving.service import Service

PATHS = ("/translate", "/score")
NO_BUFFER = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""Ask proxies to pass the pieces of a stream on at once."""


def add_text_routes(app: FastAPI, service: Service) -> None:
    """Adds the routes to an application."""
    limits = service.limits

    @app.post("/translate", openapi_extra=body_schema(TranslateRequest), responses=answers("translations"))
    async def translate(request: Request) -> Response:
        """Translates texts."""
        service.check_ready()
        deadline = asyncio.get_running_loop().time() + limits.request_seconds
        async with until(deadline, limits):
            wanted = read_request(TranslateRequest, await read_json(request, limits), limits)
            if not wanted.stream:
                return json_answer(200, await unless_gone(request, service, service.translate(wanted)))
            events = service.stream(wanted)
            first = await unless_gone(request, service, anext(events))  # refuses before the answer begins
        sent = _events(first, events, deadline, limits)
        return StreamingResponse(sent, media_type="text/event-stream", headers=NO_BUFFER)

    @app.post("/score", openapi_extra=body_schema(ScoreRequest), responses=answers("scores"))
    async def score(request: Request) -> Response:
        """Scores translations."""
        service.check_ready()
        async with until(asyncio.get_running_loop().time() + limits.request_seconds, limits):
            wanted = read_request(ScoreRequest, await read_json(request, limits), limits)
            return json_answer(200, await unless_gone(request, service, service.score(wanted)))


async def _events(
    first: dict[str, Any], events: AsyncIterator[dict[str, Any]], deadline: float, limits: Limits
) -> AsyncIterator[str]:
    """Yields server-sent events, an error as the last."""
    event: dict[str, Any] | None = first
    try:
        while event:
            yield _event(event)
            async with until(deadline, limits):
                event = await anext(events, None)
    except Refusal as refusal:
        yield _event({"error": str(refusal)})
    finally:
        await events.aclose()  # type: ignore[attr-defined]


def _event(fields: dict[str, Any]) -> str:
    return f"data: {text_of(fields)}\n\n"
