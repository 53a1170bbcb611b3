"""Reads the bodies of requests, waits for answers, and writes them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fastapi import Request, Response

from jax_transformer.serving.json_body import parse_body
from jax_transformer.serving.limits import Limits, Refusal, option
from jax_transformer.serving.service import Host

MOST_MESSAGE = 500
DRAINED_BODIES = 4
"""A body beyond the limit is read and dropped up to so many times the limit, so that the client reads the answer."""
DRAIN_SECONDS = 2.0
GONE = 499
"""Status, for the metrics, of an answer that nobody reads."""
JSON = "application/json"


async def read_json(request: Request, limits: Limits) -> Any:
    """Returns the value of a request's body. Raises Refusal as `read_body`, or if it isn't strict JSON."""
    body = await read_body(request, limits)
    try:
        return parse_body(body)
    except ValueError as error:
        raise Refusal(400, str(error)) from None


async def read_body(request: Request, limits: Limits) -> bytes:
    """Returns a request's body.

    Raises:
      Refusal: it isn't JSON by its content type, is larger than the limit, or takes too long.
    """
    check_content_type(request, JSON)
    body = bytearray()
    await receive(request, limits, "max_body_bytes", body.extend)
    return bytes(body)


def check_content_type(request: Request, expected: str) -> None:
    """Raises Refusal if a request states another content type."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != expected:
        raise Refusal(415, f"expected the content type {expected}; received {kind[:80] or 'none'}")


async def receive(request: Request, limits: Limits, limit: str, take: Callable[[bytes], object]) -> None:
    """Gives `take` the bytes of a body, chunk by chunk.

    Args:
      limit: the name of the limit on its bytes.

    Raises:
      Refusal: it is larger than the limit, or takes too long.
    """
    received, most, more = 0, getattr(limits, limit), True
    try:
        async with asyncio.timeout(limits.receive_seconds):
            while more and received <= most:
                chunk, more = await _next_chunk(request)
                received += len(chunk)
                if received <= most:
                    take(chunk)
    except TimeoutError:
        message = f"expected the body within {limits.receive_seconds:g} seconds (--receive-seconds)"
        raise Refusal(408, f"{message}; received {received:,} bytes") from None
    if more:
        await _drain(request, DRAINED_BODIES * most)
    limits.check(limit, received, "bytes in a body, as far as it was read,", status=413)


async def _next_chunk(request: Request) -> tuple[bytes, bool]:
    """Returns the next bytes of the body, and whether more follow. Raises Refusal if the client is gone."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise Refusal(GONE, "the client went away")
    return message.get("body", b""), message.get("more_body", False)


async def _drain(request: Request, most: int) -> None:
    """Drops the rest of a body, or so many bytes of it."""
    dropped, more = 0, True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while more and dropped < most:
                chunk, more = await _next_chunk(request)
                dropped += len(chunk)


@contextlib.asynccontextmanager
async def until(deadline: float, limits: Limits, limit: str = "request_seconds") -> AsyncIterator[None]:
    """Raises Refusal where the block takes longer; its message names the limit."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        seconds = f"{getattr(limits, limit):g} seconds ({option(limit)})"
        message = f"expected the answer within {seconds}; it isn't there"
        raise Refusal(504, message, retry_after=1) from None


async def unless_gone(request: Request, service: Host, answer: Awaitable[Any]) -> Any:
    """Returns the answer. Cancels the work if the client goes away."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(answer), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            service.metrics.cancelled.inc()
            raise Refusal(GONE, "the client went away")
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()


def text_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def json_answer(status: int, value: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(text_of(value) + "\n", status, headers, JSON)


def error_text(message: str) -> str:
    """Returns the one line of an error's answer."""
    line = " ".join(message.encode("utf-8", "replace").decode().split())
    return text_of({"error": line if len(line) <= MOST_MESSAGE else line[: MOST_MESSAGE - 1] + "…"})
