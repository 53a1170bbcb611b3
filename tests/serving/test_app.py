"""The application in this process: answers equal those of the commands, whatever else is asked at the time."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import numpy as np
import pytest
from clients import Ask, asked

from jax_transformer.decoding import sampling_loop
from jax_transformer.decoding.alignment import attention, entropies
from jax_transformer.decoding.pairs import score_pairs
from jax_transformer.decoding.prepared import PreparedModel
from jax_transformer.decoding.target_tags import with_target_tag
from jax_transformer.decoding.translation import Translation, translate_each
from jax_transformer.serving import engine as engine_module
from jax_transformer.serving.app import make_app
from jax_transformer.serving.engine import Engine, Searches
from jax_transformer.serving.limits import Limits, Refusal
from jax_transformer.serving.service import Service
from jax_transformer.serving.work import Kind, Unit

pytestmark = pytest.mark.usefixtures("quick_compilation")

TEXTS = ["eins zwei drei", "vier", "", "fünf sechs sieben acht neun zehn", "drei " * 18, "zehn neun", "acht acht"]
LONG = "eins zwei . " * 10
LIMITS = Limits(
    max_texts=40, max_characters=300, max_body_bytes=5_000, max_queue_tokens=20_000, max_streams=2, max_weights=2_000
)


class Paused(Engine):
    """Computes once it may."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.may_go_on = threading.Event()
        self.batches: list[int] = []
        self.error: Exception | None = None

    def compute(self, kind: Kind, units: Sequence[Unit]) -> Sequence[Any]:
        self.may_go_on.wait(30)
        self.batches.append(len(units))
        if self.error:
            raise self.error
        return super().compute(kind, units)


@pytest.fixture(scope="module")
def service(model: PreparedModel) -> Iterator[Service]:
    service = Service(Engine(model, LIMITS, rows=8, batch_tokens=512), max_wait_ms=20)
    service.start()
    yield service
    assert service.stop(30)


@pytest.fixture
def paused(model: PreparedModel) -> Iterator[Callable[..., tuple[Service, Paused]]]:
    """(**limits) → a service that computes nothing yet."""
    services: list[tuple[Service, Paused]] = []

    def make(**limits: Any) -> tuple[Service, Paused]:
        engine = Paused(model, Limits(**limits), rows=8, batch_tokens=512)
        service = Service(engine, max_wait_ms=0)
        service.start()
        services.append((service, engine))
        return service, engine

    yield make
    for service, engine in services:
        engine.may_go_on.set()
        assert service.stop(30)


def post(path: str, **fields: Any) -> Ask:
    return lambda client: client.post(path, json=fields)


def error_of(response: httpx.Response) -> str:
    """Returns the message of an error's answer, which is one line."""
    assert response.text.endswith("}\n")
    assert response.text.count("\n") == 1
    return str(json.loads(response.text)["error"])


# --- results


def expected(found: Translation, rank: int = 0) -> dict[str, Any]:
    return {"text": found.text(rank), "score": pytest.approx(found.score(rank), abs=2e-5) if found.parts else None}


SEARCHES: list[dict[str, Any]] = [
    {},
    {"beam_size": 3, "num_return": 2, "length_penalty": 0.6},
    {"sampling": True, "seed": 7, "num_return": 2, "temperature": 1.5},
    {"prefix": "ZEHN", "max_new_tokens": 9},
    {"source_tag": "<2de>", "target_tag": "<nl>"},
]


def test_answers_equal_translate_whatever_else_is_asked(service: Service, model: PreparedModel) -> None:
    """Each search is asked for by several clients at once: whole lists, single texts, and pairs to score."""
    asks, wanted = [], []
    for search in SEARCHES:
        options = dict(search)
        source_tag, prefix = options.pop("source_tag", ""), options.pop("prefix", "")
        variant, forced = with_target_tag(model, options.pop("target_tag", ""))
        options |= {"forced_bos_id": forced}
        lists = [TEXTS, TEXTS[::-1], *([text] for text in TEXTS[:3])]
        for texts in lists:
            asks.append(post("/translate", texts=texts, **search))
            wanted.append(
                translate_each(variant, texts, source_tag=source_tag, prefix=prefix, rows=8, **options)  # type: ignore[arg-type]
            )
    for response, found in zip(asked(service, *asks), wanted, strict=True):
        assert response.status_code == 200, response.text
        answers = response.json()["translations"]
        assert len(answers) == len(found)
        for answer, translation in zip(answers, found, strict=True):
            assert {name: answer[name] for name in ("text", "score")} == expected(translation)
            for rank, hypothesis in enumerate(answer.get("hypotheses", [])):
                assert {name: hypothesis[name] for name in ("text", "score")} == expected(translation, rank)
                assert model.target_tokenizer is not None
                ids = translation.parts[0].hypotheses[rank].ids
                assert hypothesis["tokens"] == model.target_tokenizer.tokens(ids)
                assert hypothesis["cut_off"] == (ids[-1] != 3)


def test_scores_equal_the_function_score(service: Service, model: PreparedModel) -> None:
    sources = ["eins zwei drei", "vier", "zehn neun acht sieben"]
    targets = ["DREI", "", "ZWEI VIER unbekannt ZEHN " * 3]
    asks = [post("/score", sources=sources, targets=targets), post("/score", sources=sources[:1], targets=targets[:1])]
    tagged = post("/score", sources=sources, targets=targets, target_tag="<de>")
    for response, tag in zip(asked(service, *asks, tagged), ("", "", "<de>"), strict=True):
        found = score_pairs(model, zip(sources, targets, strict=True), target_tag=tag)
        for answer, score in zip(response.json()["scores"], found, strict=False):
            assert answer["log_prob"] == pytest.approx(score.log_prob, abs=2e-5)
            assert answer["tokens"] == len(score.token_log_probs)


@pytest.mark.parametrize(
    "fields",
    [
        {"texts": ["eins zwei drei"]},
        {"texts": ["zehn neun"], "sampling": True, "seed": 3, "temperature": 2.0},
        {"texts": [LONG], "split_long": True},
        {"texts": ["sechs"], "prefix": "VIER", "max_new_tokens": 5},
        {"texts": [" "]},
    ],
)
def test_a_stream_ends_with_the_answer_without_one(service: Service, fields: dict[str, Any]) -> None:
    """Beside others that are translated at the time."""
    whole, streamed, *_ = asked(
        service,
        post("/translate", **fields),
        post("/translate", stream=True, **fields),
        post("/translate", texts=TEXTS),
    )
    assert streamed.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in streamed.text.split("\n\n") if line]
    *pieces, last = events
    (answer,) = whole.json()["translations"]
    score = None if answer["score"] is None else pytest.approx(answer["score"], abs=2e-5)
    assert last == {"done": True, **answer, "score": score}
    assert "".join(piece["piece"] for piece in pieces) == answer["text"]
    assert len(pieces) >= min(len(answer["text"].split()), 2)


@pytest.mark.parametrize("search", [{}, {"beam_size": 3, "num_return": 2}])
def test_attention_is_that_of_the_tokens_that_were_decoded(
    service: Service, model: PreparedModel, search: dict[str, Any]
) -> None:
    """Of each part of each hypothesis, in requests that share batches."""
    fields = {"source_tag": "<2de>", "target_tag": "<nl>", "split_long": True, **search}
    texts = ["eins zwei drei", " ", LONG, "vier unbekannt"]
    asks = [post("/translate", texts=texts, attention=True, **fields)] * 2
    plain, *attended = asked(service, post("/translate", texts=texts, **fields), *asks)
    variant, forced = with_target_tag(model, "<nl>")
    found = translate_each(variant, texts, rows=8, source_tag="<2de>", split_long=True, forced_bos_id=forced, **search)
    for response in attended:
        for answer, wanted, translation in zip(
            response.json()["translations"], plain.json()["translations"], found, strict=True
        ):
            hypotheses = answer.get("hypotheses", [answer])
            for rank, hypothesis in enumerate(hypotheses):
                parts = hypothesis.pop("attention")
                assert len(parts) == len(translation.parts)
                for part, expected_part in zip(parts, translation.parts, strict=True):
                    ids = expected_part.hypotheses[rank].ids
                    weights = attention(variant, expected_part.source_ids, ids).cross
                    np.testing.assert_allclose(part["weights"], weights, atol=0.6e-4)
                    np.testing.assert_allclose(part["entropies"], entropies(weights), atol=0.6e-4)
                    assert model.target_tokenizer is not None
                    assert part["target"]["tokens"] == model.target_tokenizer.tokens(ids)
                    assert part["source"]["tokens"][0] == "<2de>"
            assert answer == wanted
    source = attended[0].json()["translations"][3]
    (part,) = source.get("hypotheses", [source])[0]["attention"]
    assert part["source"] == {
        "tokens": ["<2de>", "vier", "<unk>", "<eos>"],
        "words": ["vier", "unbekannt"],
        "token_words": [None, 0, 1, None],
        "unknown": [2],
    }


def test_lengths_compile_few_programs(service: Service) -> None:
    """Sources of every length, in requests of every size, to be cut off anywhere: 1 or 8 rows of 8 to 24 tokens."""
    before = sampling_loop.start._cache_size(), sampling_loop.run._cache_size()  # type: ignore[attr-defined]
    asks = [
        post("/translate", texts=["eins " * (1 + (7 * number + length) % 22) for number in range(length)],
             max_new_tokens=1 + 2 * length % 23, no_repeat_ngram=2)
        for length in range(1, 20)
    ]  # fmt: skip
    assert {response.status_code for response in asked(service, *asks)} == {200}
    started = sampling_loop.start._cache_size() - before[0]  # type: ignore[attr-defined]
    ran = sampling_loop.run._cache_size() - before[1]  # type: ignore[attr-defined]
    assert 1 <= started <= 2 * 4 * 2  # rows, lengths, rooms
    assert started <= ran <= 2 * 4 * 2


# --- refusals


@pytest.mark.parametrize(
    ("status", "message", "options"),
    [
        (400, "expected JSON", {"content": b"{"}),
        (422, "length_penalty must be from", {"json": {"texts": ["a"], "beam_size": 2, "length_penalty": -1e300}}),
        (400, "received NaN", {"content": b'{"texts": ["a"], "temperature": NaN}'}),
        (400, "expected UTF-8", {"content": b'{"texts": ["\xff"]}'}),
        (413, r"at most 5,000 bytes .*--max-body-bytes", {"content": b" " * 5_001}),
        (415, "application/json; received text/plain", {"content": b"{}", "headers": {"content-type": "text/plain"}}),
        (422, "received 'text'", {"json": {"text": ["a"]}}),
        (422, "beam_size must be at least 1; received 0", {"json": {"texts": ["a"], "beam_size": 0}}),
        (422, r"at most 8 hypotheses .*--max-beam-size\); received 9", {"json": {"texts": ["a"], "beam_size": 9}}),
        (422, r"max-beam-size", {"json": {"texts": ["a"], "sampling": True, "num_return": 9}}),
        (422, r"received 1,000,000,000", {"json": {"texts": ["a"], "beam_size": 10**30}}),
        (422, r"texts\[1\]: expected at most 24 tokens", {"json": {"texts": ["eins", "zwei " * 30]}}),
        (422, "min_new_tokens", {"json": {"texts": ["a"], "min_new_tokens": 24}}),
        (422, "prefix: expected tokens of the target vocabulary", {"json": {"texts": ["a"], "prefix": "hundert"}}),
        (
            422,
            "target_tag: expected one of <de>, <nl>; received '<fr>'",
            {"json": {"texts": ["a"], "target_tag": "<fr>"}},
        ),
        (422, "source tag: expected one of <2de>", {"json": {"texts": ["a"], "source_tag": "<de>"}}),
        (422, "one text to stream; received 2", {"json": {"texts": ["a", "b"], "stream": True}}),
        (422, "attention: expected false", {"json": {"texts": ["a"], "attention": True, "stream": True}}),
        (
            422,
            r"attention: expected at most 2,000 attention weights in an answer \(--max-weights\); received",
            {
                "json": {
                    "texts": ["eins " * 20],
                    "attention": True,
                    "min_new_tokens": 23,
                    "num_return": 4,
                    "beam_size": 4,
                }
            },
        ),
        (422, "stream: expected greedy", {"json": {"texts": ["a"], "beam_size": 2, "stream": True}}),
    ],
)
def test_invalid_requests_are_refused(service: Service, status: int, message: str, options: dict[str, Any]) -> None:
    options = {"headers": {"content-type": "application/json"}, **options}
    (response,) = asked(service, lambda client: client.post("/translate", **options))
    assert response.status_code == status, response.text
    assert re.search(message, error_of(response)), response.text


def test_other_paths_and_methods(service: Service) -> None:
    asks: list[Ask] = [lambda client: client.get("/no"), lambda client: client.get("/translate")]
    asks += [lambda client: client.post("/score", json={"sources": [""], "targets": ["EINS"]})]
    no_path, no_method, blank = asked(service, *asks)
    assert (no_path.status_code, error_of(no_path)) == (404, "Not Found")
    assert (no_method.status_code, error_of(no_method)) == (405, "Method Not Allowed")
    assert (blank.status_code, error_of(blank)) == (422, "sources[0]: expected a sentence; received an empty line")


def test_pages_about_the_server(service: Service) -> None:
    paths = ["/", "/healthz", "/readyz", "/metrics", "/openapi.json"]
    answers = asked(service, *(lambda client, path=path: client.get(path) for path in paths))  # type: ignore[misc]
    assert [answer.status_code for answer in answers] == [200] * 5
    index, health, ready, metrics, schema = answers
    assert health.json() == {"status": "ok"}
    assert ready.json() == {"status": "ready"}
    assert "/translate" in schema.json()["paths"]
    assert set(index.json()["routes"]) == {"/translate", "/score", *paths[1:]}
    for name in ("requests_total", "request_seconds_bucket", "queue_tokens", "batch_fill_count", "compiled_programs"):
        assert f"\njax_transformer_{name}" in metrics.text
    assert not any("<script" in answer.text for answer in answers)


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    ("path", "accept", "kind"),
    [
        ("/", BROWSER, "text/html; charset=utf-8"),
        ("/", "*/*", "application/json"),
        ("/", "application/json", "application/json"),
        ("/", "application/json, text/html;q=0.9", "application/json"),
        ("/", "text/html;q=0, */*", "application/json"),
        ("/", "text/html;q=x", "application/json"),
        ("/docs", "*/*", "text/html; charset=utf-8"),
    ],
)
def test_browsers_get_pages_and_other_clients_json(service: Service, path: str, accept: str, kind: str) -> None:
    (answer,) = asked(service, lambda client: client.get(path, headers={"accept": accept}))
    assert answer.headers["content-type"] == kind
    assert answer.headers["vary"] == "accept"
    if kind == "application/json":
        assert set(answer.json()) == {"service", "routes", "description"}


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_forbid_what_they_do_not_need(service: Service, path: str) -> None:
    (answer,) = asked(service, lambda client: client.get(path, headers={"accept": BROWSER}))
    policy = answer.headers["content-security-policy"]
    (script,) = re.findall(r"<script>(.*?)</script>", answer.text, re.DOTALL)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert policy.rpartition(";")[0] in answer.text
    assert set(re.findall(r"\w+://[^\s'\"]+", answer.text)) == {"http://www.w3.org/2000/svg"}
    assert "{{" not in answer.text


# --- waiting


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never holds")


def test_a_full_queue_refuses(paused: Callable[..., tuple[Service, Paused]]) -> None:
    service, engine = paused(max_queue_tokens=30)

    async def ask(client: httpx.AsyncClient) -> None:
        first = asyncio.ensure_future(client.post("/translate", json={"texts": ["eins"]}))
        await until(
            lambda: (
                service.device._batcher.tokens == 0 and service.device._thread.is_alive() and len(engine.batches) == 0
            )
        )
        await asyncio.sleep(0.1)  # the device has the first
        waiting = asyncio.ensure_future(client.post("/translate", json={"texts": ["eins " * 9], "beam_size": 2}))
        await until(lambda: service.device._batcher.tokens == 20)
        refused = await client.post("/translate", json={"texts": ["eins " * 10]})
        assert refused.status_code == 503
        assert "--max-queue-tokens" in error_of(refused)
        assert int(refused.headers["retry-after"]) >= 1
        never = await client.post("/translate", json={"texts": ["eins " * 10] * 3})
        assert (never.status_code, "--max-queue-tokens" in error_of(never)) == (413, True)
        engine.may_go_on.set()
        assert [(await each).status_code for each in (first, waiting)] == [200, 200]

    asked(service, ask)


def test_an_answer_that_takes_too_long(paused: Callable[..., tuple[Service, Paused]]) -> None:
    """Its work leaves the queue."""
    service, _ = paused(request_seconds=0.3)

    async def ask(client: httpx.AsyncClient) -> None:
        first, second = await asyncio.gather(*(client.post("/translate", json={"texts": ["eins"]}) for _ in range(2)))
        assert {first.status_code, second.status_code} == {504}
        assert "--request-seconds" in error_of(first)
        assert service.device._batcher.tokens == 0

    asked(service, ask)


def test_work_of_a_client_that_went_away_is_dropped(paused: Callable[..., tuple[Service, Paused]]) -> None:
    service, engine = paused()
    body = json.dumps({"texts": ["eins", "zwei"]}).encode()

    async def request(gone: asyncio.Event) -> list[Any]:
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Any] = []

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/translate", "raw_path": b"/translate", "headers": headers}
        await make_app(service)({**scope, "query_string": b"", "http_version": "1.1"}, receive, send)
        return sent

    async def run() -> None:
        stays, goes = asyncio.Event(), asyncio.Event()
        while service.state != "ready":
            await asyncio.sleep(0.01)
        first = asyncio.ensure_future(request(stays))
        await asyncio.sleep(0.2)  # the device has it
        second = asyncio.ensure_future(request(goes))
        await until(lambda: len(service.device._batcher) == 2)
        goes.set()
        await second
        assert len(service.device._batcher) == 0
        engine.may_go_on.set()
        assert (await first)[0]["status"] == 200

    asyncio.run(run())
    assert engine.batches == [2]


def test_a_huge_request_does_not_block_a_small_one(paused: Callable[..., tuple[Service, Paused]]) -> None:
    service, engine = paused(max_texts=3000)
    order: list[str] = []

    def ask(name: str, count: int, delay: float) -> Ask:
        async def run(client: httpx.AsyncClient) -> None:
            await asyncio.sleep(delay)
            response = await client.post("/translate", json={"texts": ["eins zwei drei vier"] * count})
            assert response.status_code == 200
            order.append(name)

        return run

    async def go_on(client: httpx.AsyncClient) -> None:
        await until(lambda: len(service.device._batcher) >= 2001 - 8)
        engine.may_go_on.set()

    asked(service, ask("huge", 2000, 0.0), ask("small", 1, 0.3), go_on)
    assert order == ["small", "huge"]
    assert max(engine.batches) == 8


def test_streams_are_bounded(service: Service) -> None:
    asks = [post("/translate", texts=["eins zwei"], stream=True, min_new_tokens=15) for _ in range(6)]
    answers = asked(service, *asks)
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses[:2] == [200, 200]
    assert statuses[-1] == 503
    assert all("--max-streams" in error_of(answer) for answer in answers if answer.status_code == 503)
    assert service.device._streams == []


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [(RuntimeError("broken"), 500, "log"), (RuntimeError("RESOURCE_EXHAUSTED: no"), 503, "memory")],
)
def test_a_batch_that_fails_is_answered_and_the_next_computed(
    paused: Callable[..., tuple[Service, Paused]], error: Exception, status: int, message: str
) -> None:
    service, engine = paused()
    engine.error = error
    engine.may_go_on.set()
    (failed,) = asked(service, post("/translate", texts=["eins"] * 20))
    assert failed.status_code == status
    assert message in error_of(failed)
    assert engine.batches == [8], "the other twelve aren't computed"
    assert len(service.device._batcher) == 0
    engine.error = None
    (fine,) = asked(service, post("/translate", texts=["eins"]))
    assert fine.status_code == 200


def test_a_service_that_is_not_ready_refuses(model: PreparedModel) -> None:
    service = Service(Engine(model, LIMITS))

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [
            await client.get("/healthz"),
            await client.get("/readyz"),
            await post("/translate", texts=["eins"])(client),
        ]

    for answer in asked(service, ask)[0]:
        assert answer.status_code == 503
    service._threads.shutdown()


def test_a_service_says_what_it_compiles_until_it_is_ready(model: PreparedModel) -> None:
    engine = Paused(model, LIMITS, rows=8, batch_tokens=512)
    service = Service(engine, max_wait_ms=0, warm_up=8)
    begun: list[tuple[int, int, str]] = []
    service.start(on_compile=lambda *what: begun.append(what))

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.get("/readyz")

    async def first() -> httpx.Response:
        while not begun:
            await asyncio.sleep(0.01)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(make_app(service)), base_url="http://test"
        ) as client:
            return await ask(client)

    answer = asyncio.run(first())
    assert (answer.status_code, answer.json()) == (
        503,
        {"error": "the server isn't ready: warming up (compiling 1 of 4)"},
    )
    engine.may_go_on.set()
    assert asked(service, ask)[0].status_code == 200
    names = ["1 text", "8 texts", "the attention of a text", "a stream of a text"]
    assert begun == [(n, 4, f"{name} of up to 8 tokens") for n, name in enumerate(names, 1)]
    assert service.stop(30)


# --- kinds of searches


def test_kinds_of_searches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in ten minutes, another kind takes the place of all others."""
    now, cleared = [1000.0], []
    monkeypatch.setattr(engine_module.jax, "clear_caches", lambda: cleared.append(now[0]))
    searches = Searches(2, clock=lambda: now[0])
    first, second, third, fourth = (kind_of(beams) for beams in (1, 2, 3, 4))
    for each in (first, second, first):
        searches.admit(each)
    with pytest.raises(Refusal, match="at most 2 kinds of searches") as caught:
        searches.admit(third)
    assert (caught.value.status, caught.value.retry_after) == (503, 601)
    searches.forget_if_asked()
    assert cleared == []
    now[0] += 601
    searches.admit(third)
    searches.forget_if_asked()
    searches.forget_if_asked()
    assert cleared == [1601.0]
    searches.admit(fourth)
    with pytest.raises(Refusal):
        searches.admit(first)


def test_compiled_programs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, cleared = [100], []
    monkeypatch.setattr(engine_module, "compiled_programs", lambda: compiled[0])
    monkeypatch.setattr(engine_module.jax, "clear_caches", lambda: cleared.append(compiled[0]))
    searches = Searches(2)
    for count in (1100, 1101, 1102, 2101, 2102):
        compiled[0] = count
        searches.forget_if_asked()
    assert cleared == [1101, 2102]


def kind_of(beams: int) -> Any:
    from jax_transformer.config.decoding import DecodingConfig, GenerationConfig
    from jax_transformer.decoding.search_params import SearchProgram

    return SearchProgram.from_config(DecodingConfig(beam_size=beams).resolved(GenerationConfig()))
