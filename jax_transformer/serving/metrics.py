"""Metrics for Prometheus."""

from __future__ import annotations

import threading
from typing import Any

import jax
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

PREFIX = "jax_transformer"
COMPILED = "/jax/core/compile/backend_compile_duration"
LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)


class Metrics:
    """Holds the counters of a server. Each server has its own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def make(kind: Any, name: str, help_text: str, labels: tuple[str, ...] = (), **options: Any) -> Any:
            return kind(f"{PREFIX}_{name}", help_text, labels, registry=self.registry, **options)

        self.requests = make(Counter, "requests", "Requests answered.", ("path", "status"))
        self.latency = make(
            Histogram, "request_seconds", "Seconds from a request's arrival to the end of its answer.", ("path",),
            buckets=LATENCIES,
        )  # fmt: skip
        self.cancelled = make(Counter, "cancelled", "Requests whose client went away before the answer.")
        self.queue_tokens = make(Gauge, "queue_tokens", "Source tokens that wait, once for each hypothesis.")
        self.queue_units = make(Gauge, "queue_sentences", "Sentences and pairs that wait.")
        self.streams = make(Gauge, "streams", "Streams that are decoded.")
        self.batch_units = make(Histogram, "batch_sentences", "Sentences or pairs of a batch.", buckets=SENTENCES)
        self.batch_fill = make(
            Histogram, "batch_fill", "Share of a batch's source tokens that isn't padding.", buckets=SHARES
        )
        self.tokens = make(Counter, "tokens", "Tokens computed; their rate is the speed.", ("side",))
        self.device = make(Counter, "device_seconds", "Seconds that the device's thread computed.", ("work",))
        self.failures = make(Counter, "failures", "Batches and streams that ended in an error of the server's.")
        programs = make(Gauge, "compiled_programs", "Programs compiled, or loaded from the cache, since the start.")
        programs.set_function(compiled_programs)

    def text(self) -> bytes:
        """Returns all of them in Prometheus's text format."""
        return generate_latest(self.registry)


_compiled = 0
_is_listening = False
_LOCK = threading.Lock()


def count_programs() -> None:
    """Begins to count the programs that JAX compiles in this process."""
    global _is_listening
    with _LOCK:
        if not _is_listening:
            jax.monitoring.register_event_duration_secs_listener(_on_event)
            _is_listening = True


def compiled_programs() -> int:
    """Returns the number of programs compiled since `count_programs`."""
    return _compiled


def _on_event(event: str, duration_secs: float, **details: str | int) -> None:
    global _compiled
    if event == COMPILED:
        _compiled += 1
