"""A model is ported by its name on the Hub: only the files that it needs are downloaded, and a name that can't be had
is refused."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np
import pytest
from hugging_face_directories import write

from jax_transformer.cli import main
from jax_transformer.porting import import_checkpoint
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import load_model
from jax_transformer.storage.tensors import PortingError


def test_a_name_on_the_hub_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("nobody/nothing", "a--b/c", "a/b.git"):
        with pytest.raises(
            PortingError, match=f"{name}: no such file or directory, and no model of this name on the Hub"
        ):
            import_checkpoint(name)
    assert main(["port", "./nothing", str(tmp_path / "model")]) == 2


HUB_COMMAND = "import sys; from jax_transformer.cli import main; sys.exit(main(sys.argv[1:]))"


class Hub(BaseHTTPRequestHandler):
    """What huggingface_hub asks of a Hub, for one model in the folder `served`."""

    served: Path
    asked: ClassVar[list[str]] = []
    COMMIT = "0123456789abcdef0123456789abcdef01234567"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        path = urlsplit(self.path).path
        file = self.served / path.rpartition("/")[2]
        if path.startswith("/api/models/someone/tiny/tree/"):
            files = [
                {"type": "file", "path": entry.name, "size": entry.stat().st_size, "oid": "0" * 40}
                for entry in self.served.iterdir()
            ]
            body = json.dumps(files).encode()
        elif path.startswith("/api/models/someone/tiny"):
            names = [{"rfilename": entry.name} for entry in sorted(self.served.iterdir())]
            body = json.dumps(
                {"id": "someone/tiny", "modelId": "someone/tiny", "sha": self.COMMIT, "siblings": names, "tags": []}
            ).encode()
        elif path.startswith("/someone/tiny/resolve/") and file.is_file():
            body = file.read_bytes()
            self.asked.append(file.name)
        else:
            self.send_error(404)
            return
        self.send_response(200)
        headers = {
            "X-Repo-Commit": self.COMMIT,
            "ETag": f'"{hashlib.sha1(body).hexdigest()}"',
            "Content-Type": "application/json",
        }
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


def test_a_name_on_the_hub(tmp_path: Path) -> None:
    """By huggingface_hub itself, from a Hub of our own: only the files that are needed, and from its cache the next
    time."""
    directory = write(tmp_path / "there", "bart")
    (directory / "tf_model.h5").write_bytes(b"not asked for")
    (directory / "README.md").write_text("nor this")
    (directory / "vocab.json").write_text("{}")
    Hub.served = directory
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = os.environ | {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path / "cache"),
    }
    environment |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    try:
        for name, place, code in (("tiny", "model", 0), ("tiny", "again", 0), ("other", "none", 2)):
            command = [sys.executable, "-c", HUB_COMMAND, "port", f"someone/{name}", str(tmp_path / place)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == code, done.stderr
            assert (done.stdout + done.stderr).count(
                f"files:    someone/{name}" if code == 0 else "no model of this name on the Hub"
            ) == 1
    finally:
        server.shutdown()
        server.server_close()
    assert set(Hub.asked) == {"config.json", "model.safetensors", "vocab.json"}
    received, expected = load_model(tmp_path / "model"), import_checkpoint(directory)
    assert received.tokenizer_files == {"vocab.json": b"{}"}
    assert all(np.array_equal(leaf, flatten(expected.params)[path]) for path, leaf in flatten(received.params).items())
