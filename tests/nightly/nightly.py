"""Which parametrisations of a slow test wait for the night."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_nightly(
    names: str | tuple[str, ...], cases: Iterable[Any], few: int, **options: Any
) -> pytest.MarkDecorator:
    """Returns `pytest.mark.parametrize(names, cases, **options)` with all but a few of the cases marked as nightly.
    Those few are spread evenly, from the first on."""
    found = list(cases)
    several = not isinstance(names, str) or "," in names
    kept = {len(found) * number // few for number in range(few)} if few < len(found) else range(len(found))
    chosen = [case if index in kept else _nightly(case, several) for index, case in enumerate(found)]
    return pytest.mark.parametrize(names, chosen, **options)


def _nightly(case: Any, several: bool) -> Any:
    marks: list[Any] = [pytest.mark.nightly]
    if hasattr(case, "marks"):  # a pytest.param
        return pytest.param(*case.values, marks=[*case.marks, *marks], id=case.id)
    return pytest.param(*(case if several else (case,)), marks=marks)
