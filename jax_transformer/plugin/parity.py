"""A pytest plugin: readable failures of comparisons and proofs, and one JSON file for each test that makes some.

```python
def test_port(parity):
    parity.assert_same(MyModel(rngs=nnx.Rngs(0)), "reference.frozen")
```

It imports JAX when a test asks for the fixture, and nothing before.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from jax_transformer.comparison.report.report import Report
    from jax_transformer.proof.certificate import Certificate

OPTION = "--jax-transformer-reports"
LONGEST = 150
"""Characters of a test's name in the name of its file."""


class ParityFailure(AssertionError):
    """Raised for programs that aren't shown to be the same; its message is all that pytest prints."""


class Parity:
    """Compares and proves programs in a test, and keeps what was found.

    The fixture `parity` is one of these.

    Args:
      reports: the folder of JSON files; None: none are written.
      test: the test's name.
    """

    def __init__(self, reports: str | None, test: str) -> None:
        self._reports, self._test = reports, test
        self._found: list[dict[str, Any]] = []

    def assert_same(
        self, candidate: Any, reference: Any, inputs: Mapping[str, Any] | None = None, **changes: Any
    ) -> Certificate:
        """Fails unless two programs are proven to be one function; as `jax_transformer.assert_same`.

        Raises:
          ParityFailure: they differ, or it isn't known whether they do.
          ValueError: as `prove`.
        """
        from jax_transformer.parity.proofs.api import prove

        certificate = prove(candidate, reference, inputs=inputs, **changes)
        irregular = certificate.map.get("irregular", ())
        self._keep(certificate, certificate.verdict == "proven" and not irregular)
        return certificate

    def assert_parity(self, candidate: Any, reference: Any = None, **changes: Any) -> Report:
        """Fails unless a comparison passes; as `jax_transformer.compare` with its verdict asserted.

        Raises:
          ParityFailure: the sides differ, or the comparison is inconclusive.
          ValueError: as `compare`.
        """
        from jax_transformer.parity.api import compare

        report = compare(candidate, reference, **changes)
        self._keep(report, report.verdict == "passed")
        return report

    def _keep(self, found: Report | Certificate, holds: bool) -> None:
        from jax_transformer.comparison.report.summary import failure_text, summary_of

        summary = summary_of(found)
        details = json.loads(found.to_json())
        self._found.append({"test": self._test, "passed": holds, **summary, "details": details})
        if not holds:
            raise ParityFailure(failure_text(found))

    def write(self) -> None:
        """Writes what was found to the folder, in one file."""
        if self._reports is None or not self._found:
            return
        from jax_transformer.runtime.files import atomic_write

        folder = Path(self._reports)
        folder.mkdir(parents=True, exist_ok=True)
        first = next((one for one in self._found if not one["passed"]), self._found[-1])
        text = json.dumps({**first, "all": [one["verdict"] for one in self._found]}, indent=2, ensure_ascii=False)
        with atomic_write(folder / f"{file_name(self._test)}.json") as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")


def file_name(test: str) -> str:
    """Returns the name of a test's file: its node id, with other signs replaced. Long names end in a digest."""
    name = re.sub(r"[^\w.\-]+", "_", test).strip("_")
    if len(name) <= LONGEST and name == test:
        return name
    import hashlib

    return f"{name[:LONGEST]}-{hashlib.sha256(test.encode()).hexdigest()[:8]}"


# --- pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("jax-transformer")
    group.addoption(OPTION, metavar="DIR", default=None, help="write a JSON file of each test that uses `parity`")


@pytest.fixture
def parity(request: pytest.FixtureRequest) -> Iterator[Parity]:
    """Compares and proves programs: `parity.assert_same(candidate, reference)`, `parity.assert_parity(…)`."""
    found = Parity(request.config.getoption(OPTION), request.node.nodeid)
    yield found
    found.write()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Shows a failed comparison as its own text, without a traceback."""
    report = yield
    raised = call.excinfo
    if raised is None or "jax_transformer.parity" not in sys.modules:
        return report
    if isinstance(raised.value, ParityFailure):
        place = next((each for each in reversed(raised.traceback) if _is_of_test(each, item)), raised.traceback[-1])
        report.longrepr = f"{place.path}:{place.lineno + 1}\n{raised.value}"
    return report


def _is_of_test(entry: Any, item: pytest.Item) -> bool:
    return os.fspath(entry.path) == os.fspath(item.path)
