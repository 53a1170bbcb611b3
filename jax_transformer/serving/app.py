"""Routes HTTP requests: bodies, answers, errors."""

from __future__ import annotations

import asyncio
import functools
import time
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jax_transformer.pages.serving import ServedPage, render_api, render_transcribe, render_translate
from jax_transformer.serving import speech_routes, text_routes
from jax_transformer.serving.exchange import JSON, error_text, json_answer
from jax_transformer.serving.limits import Refusal
from jax_transformer.serving.schema import states
from jax_transformer.serving.service import Host, Service
from jax_transformer.serving.speech_service import SpeechService

CLOSING = (408, 413, 415, 503)
"""Statuses that may be sent before the body was read: the connection ends, so that no more of it comes."""
STATES = ("/healthz", "/readyz", "/metrics", "/openapi.json")
PATHS = ("/", "/docs", *text_routes.PATHS, *speech_routes.PATHS, *STATES)
"""Paths that metrics name."""
HTML = "text/html"


def make_app(service: Service | SpeechService, lifespan: Any = None) -> FastAPI:
    """Returns the application. Its pages load nothing from elsewhere.

    Args:
      service: what answers.
      lifespan: an asynchronous context manager of the application that starts and stops the service.
    """
    subject = "Transcripts" if isinstance(service, SpeechService) else "Translations"
    app = FastAPI(
        title="jax-transformer",
        description=f"{subject} by an encoder-decoder Transformer.",
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
    if isinstance(service, SpeechService):
        paths = speech_routes.PATHS
        speech_routes.add_speech_routes(app, service)
    else:
        paths = text_routes.PATHS
        text_routes.add_text_routes(app, service)

    @app.get("/healthz", responses=states("The device's thread runs.", "It is gone.", "status"))
    async def healthz() -> Response:
        """Checks that the process works: 200, or 503 once its device's thread is gone."""
        is_well = service.device.is_alive
        return json_answer(200 if is_well else 503, {"status": "ok" if is_well else "the device's thread is gone"})

    @app.get("/readyz", responses=states("Requests are answered.", "Programs compile, or the server stops.", "error"))
    async def readyz() -> Response:
        """Checks that requests are answered: 200, or 503 while programs are compiled or the server stops."""
        service.check_ready()
        return json_answer(200, {"status": "ready"})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Returns metrics for Prometheus."""
        return Response(service.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        """Returns the page that translates or transcribes to browsers, and names the routes to other clients."""
        if prefers_html(request.headers.get("accept", "")):
            return _page(own_page())
        routes = {"service": "jax-transformer", "routes": [*paths, *STATES], "description": "/openapi.json"}
        return json_answer(200, routes, {"vary": "accept"})

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        """Returns the page of the interface."""
        return _page(api_page())

    @functools.cache
    def own_page() -> ServedPage:
        render = render_transcribe if isinstance(service, SpeechService) else render_translate
        return render({"model": service.name, **service.engine.facts()})

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


def _page(page: ServedPage) -> Response:
    headers = {
        "content-security-policy": page.policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
        "vary": "accept",
    }
    return Response(page.html, 200, headers, HTML)


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

    def __init__(self, app: ASGIApp, service: Host) -> None:
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
