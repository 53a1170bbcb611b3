"""Routes HTTP requests: bodies, answers, errors."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jax_transformer.pages.serving import ServedPage, render_api, render_translate
from jax_transformer.serving.json_body import parse_body
from jax_transformer.serving.limits import Limits, Refusal
from jax_transformer.serving.requests import ScoreRequest, TranslateRequest, read_request
from jax_transformer.serving.schema import answers, body_schema, states
from jax_transformer.serving.service import Service

MOST_MESSAGE = 500
DRAINED_BODIES = 4
"""A body beyond the limit is read and dropped up to so many times the limit, so that the client reads the answer."""
DRAIN_SECONDS = 2.0
GONE = 499
"""Status, for the metrics, of an answer that nobody reads."""
CLOSING = (408, 413, 415, 503)
"""Statuses that may be sent before the body was read: the connection ends, so that no more of it comes."""
ROUTES = ("/translate", "/score", "/healthz", "/readyz", "/metrics", "/openapi.json")
PATHS = ("/", "/docs", *ROUTES)
HTML, JSON = "text/html", "application/json"


def make_app(service: Service, lifespan: Any = None) -> FastAPI:
    """Returns the application. Its pages load nothing from elsewhere.

    Args:
      service: what answers.
      lifespan: an asynchronous context manager of the application that starts and stops the service.
    """
    app = FastAPI(
        title="jax-transformer",
        description="Translations by an encoder-decoder Transformer.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        lifespan=lifespan,
    )
    app.add_middleware(Measured, service=service)
    app.add_exception_handler(Refusal, _refused)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _not_found)  # type: ignore[arg-type]
    app.add_exception_handler(Exception, _failed)
    limits = service.limits

    @app.post("/translate", openapi_extra=body_schema(TranslateRequest), responses=answers("translations"))
    async def translate(request: Request) -> Response:
        """Translates texts."""
        service.check_ready()
        deadline = asyncio.get_running_loop().time() + limits.request_seconds
        async with _until(deadline, limits):
            wanted = read_request(TranslateRequest, await read_json(request, limits), limits)
            if not wanted.stream:
                return _json(200, await _unless_gone(request, service, service.translate(wanted)))
            events = service.stream(wanted)
            first = await _unless_gone(request, service, anext(events))  # refuses before the answer begins
        sent = _events(first, events, deadline, limits)
        return StreamingResponse(sent, media_type="text/event-stream", headers=NO_BUFFER)

    @app.post("/score", openapi_extra=body_schema(ScoreRequest), responses=answers("scores"))
    async def score(request: Request) -> Response:
        """Scores translations."""
        service.check_ready()
        async with _until(asyncio.get_running_loop().time() + limits.request_seconds, limits):
            wanted = read_request(ScoreRequest, await read_json(request, limits), limits)
            return _json(200, await _unless_gone(request, service, service.score(wanted)))

    @app.get("/healthz", responses=states("The device's thread runs.", "It is gone.", "status"))
    async def healthz() -> Response:
        """Checks that the process works: 200, or 503 once its device's thread is gone."""
        is_well = service.device.is_alive
        return _json(200 if is_well else 503, {"status": "ok" if is_well else "the device's thread is gone"})

    @app.get("/readyz", responses=states("Requests are answered.", "Programs compile, or the server stops.", "error"))
    async def readyz() -> Response:
        """Checks that requests are answered: 200, or 503 while programs are compiled or the server stops."""
        service.check_ready()
        return _json(200, {"status": "ready"})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Returns metrics for Prometheus."""
        return Response(service.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        """Returns the page that translates to browsers, and names the routes to other clients."""
        if prefers_html(request.headers.get("accept", "")):
            return _page(translate_page())
        routes = {"service": "jax-transformer", "routes": list(ROUTES), "description": "/openapi.json"}
        return _json(200, routes, {"vary": "accept"})

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        """Returns the page of the interface."""
        return _page(api_page())

    @functools.cache
    def translate_page() -> ServedPage:
        return render_translate({"model": service.name, **service.engine.facts()})

    @functools.cache
    def api_page() -> ServedPage:
        return render_api(app.openapi())

    return app


def prefers_html(accept: str) -> bool:
    """Returns whether an Accept header names HTML, and JSON with no higher a quality, as those of browsers do.

    Example:
      >>> prefers_html("text/html,application/xhtml+xml,*/*;q=0.8"), prefers_html("*/*"), prefers_html("")
      (True, False, False)
    """
    qualities: dict[str, float] = {}
    for entry in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in entry.split(";"))
        quality = next((part.removeprefix("q=") for part in parameters if part.startswith("q=")), "1")
        try:
            qualities[kind] = float(quality)
        except ValueError:
            qualities[kind] = 0.0
    return qualities.get(HTML, 0.0) > 0.0 and qualities[HTML] >= qualities.get(JSON, 0.0)


NO_BUFFER = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""Ask proxies to pass the pieces of a stream on at once."""


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
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise Refusal(415, f"expected the content type application/json; received {kind[:80] or 'none'}")
    body, more = bytearray(), True
    try:
        async with asyncio.timeout(limits.receive_seconds):
            while more and len(body) <= limits.max_body_bytes:
                chunk, more = await _next_chunk(request)
                body += chunk
    except TimeoutError:
        message = f"expected the body within {limits.receive_seconds:g} seconds (--receive-seconds)"
        raise Refusal(408, f"{message}; received {len(body):,} bytes") from None
    if more:
        await _drain(request, limits)
    limits.check("max_body_bytes", len(body), "bytes in a body, as far as it was read,", status=413)
    return bytes(body)


async def _next_chunk(request: Request) -> tuple[bytes, bool]:
    """Returns the next bytes of the body, and whether more follow. Raises Refusal if the client is gone."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise Refusal(GONE, "the client went away")
    return message.get("body", b""), message.get("more_body", False)


async def _drain(request: Request, limits: Limits) -> None:
    """Drops the rest of a body, within limits."""
    dropped, more = 0, True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while more and dropped < DRAINED_BODIES * limits.max_body_bytes:
                chunk, more = await _next_chunk(request)
                dropped += len(chunk)


@contextlib.asynccontextmanager
async def _until(deadline: float, limits: Limits) -> AsyncIterator[None]:
    """Raises Refusal where the block takes longer."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        message = f"expected the answer within {limits.request_seconds:g} seconds (--request-seconds); it isn't there"
        raise Refusal(504, message, retry_after=1) from None


async def _unless_gone(request: Request, service: Service, answer: Awaitable[Any]) -> Any:
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


async def _events(
    first: dict[str, Any], events: AsyncIterator[dict[str, Any]], deadline: float, limits: Limits
) -> AsyncIterator[str]:
    """Yields server-sent events, an error as the last."""
    event: dict[str, Any] | None = first
    try:
        while event:
            yield _event(event)
            async with _until(deadline, limits):
                event = await anext(events, None)
    except Refusal as refusal:
        yield _event({"error": str(refusal)})
    finally:
        await events.aclose()  # type: ignore[attr-defined]


def _event(fields: dict[str, Any]) -> str:
    return f"data: {_text(fields)}\n\n"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _json(status: int, value: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(_text(value) + "\n", status, headers, JSON)


def _page(page: ServedPage) -> Response:
    headers = {
        "content-security-policy": page.policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
        "vary": "accept",
    }
    return Response(page.html, 200, headers, HTML)


def error_text(message: str) -> str:
    """Returns the one line of an error's answer."""
    line = " ".join(message.encode("utf-8", "replace").decode().split())
    return _text({"error": line if len(line) <= MOST_MESSAGE else line[: MOST_MESSAGE - 1] + "…"})


async def _refused(request: Request, refusal: Refusal) -> Response:
    headers = {"connection": "close"} if refusal.status in CLOSING else {}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(refusal.retry_after)
    return Response(error_text(str(refusal)) + "\n", refusal.status, headers, JSON)


async def _not_found(request: Request, error: HTTPException) -> Response:
    headers = {**(error.headers or {}), "connection": "close"}
    return Response(error_text(error.detail) + "\n", error.status_code, headers, JSON)


async def _failed(request: Request, error: Exception) -> Response:
    return Response(error_text("the server failed; its log says why") + "\n", 500, None, JSON)


class Measured:
    """Counts requests and measures how long they take. Answers requests that the end of the server cuts off."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service, self._metrics = app, service, service.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            if self._service.state != "stopping":
                raise
            self._service.cut_off += 1
            if not status:
                late = Refusal(503, "the server stopped before the answer was there", retry_after=10)
                await (await _refused(Request(scope), late))(scope, receive, watched)
        finally:
            path = scope["path"] if scope["path"] in PATHS else "other"
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.latency.labels(path).observe(time.perf_counter() - start)
