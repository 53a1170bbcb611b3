"""JSON from files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jax_transformer.runtime.json_text import read_json_object


class Refused(ValueError):
    """The caller's class of errors."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[1]", "expected a JSON object; received list"),
        (b"{", "expected a JSON object; received text that isn't JSON (Expecting"),
        (b'{"a": "\xff"}', "expected a JSON object; received text that isn't JSON ('utf-8' codec"),
        (b"[" * 100_000, "expected a JSON object; received text that isn't JSON (nested too deeply)"),
        (b'{"a": "' + 200_000 * b"b", "expected at most 200,000 bytes of JSON; received 200,007"),
    ],
)
def test_a_file_without_a_json_object_is_refused(
    text: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_TRANSFORMER_MAX_JSON_BYTES", "200000")
    file = tmp_path / "data.json"
    file.write_bytes(text)
    with pytest.raises(Refused, match=re.escape(f"{file}: {message}")):
        read_json_object(file, Refused)
    file.write_text('{"step": 3}')
    assert read_json_object(file) == {"step": 3}
