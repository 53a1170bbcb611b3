"""A small Hub of our own: models with branches and commits, in memory, as huggingface_hub asks for them."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Files = dict[str, bytes]
TOKEN = "hf_" + "a" * 34


@dataclass
class Repository:
    """Holds a model's commits and branches."""

    private: bool = False
    commits: dict[str, Files] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, files: Files, branch: str = "main", message: str = "") -> str:
        """Makes `files` the content of a branch; returns the commit."""
        name = hashlib.sha1(f"{len(self.commits)} {message}".encode()).hexdigest()
        self.commits[name], self.branches[branch] = dict(files), name
        self.messages.append(message)
        return name

    def files(self, branch: str = "main") -> Files:
        return self.commits[self.branches[branch]]


@dataclass
class Hub:
    """Holds the models, what was asked for, and how the Hub is to fail."""

    address: str = ""
    models: dict[str, Repository] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    """Uploaded large files by SHA-256."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Methods and paths."""
    fails: Callable[[str, str], int | None] = lambda method, path: None
    """(method, path) → the status to answer with, 0 to end the connection, or None."""

    def downloads(self) -> list[str]:
        """Returns the files that were downloaded, in order."""
        return [path.partition("/resolve/")[2].partition("/")[2] for method, path in self.asked if method == "GET"
                and "/resolve/" in path]  # fmt: skip


def described(files: Files) -> list[dict[str, Any]]:
    """Returns what the Hub says about files."""
    return [{"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for name, data in files.items()]  # fmt: skip


def make_handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._serve("GET")

        def do_HEAD(self) -> None:
            self._serve("HEAD")

        def do_POST(self) -> None:
            self._serve("POST")

        def do_PUT(self) -> None:
            self._serve("PUT")

        def log_message(self, *arguments: Any) -> None:
            pass

        def _serve(self, method: str) -> None:
            path = unquote(urlsplit(self.path).path)
            self.body = self._read_body()
            hub.asked.append((method, path))
            status = hub.fails(method, path)
            if status == 0:
                self.close_connection = True
                return
            if status is not None:
                self._refuse(status, "refused by the test")
                return
            if method == "PUT":
                hub.large[path.rpartition("/")[2]] = self.body
                self._answer(b"")
            elif path == "/api/repos/create":
                self._create()
            elif path == "/api/validate-yaml":
                self._json({"errors": [], "warnings": []})
            elif path.startswith("/api/models/"):
                self._api(path.removeprefix("/api/models/"))
            elif path.endswith("/info/lfs/objects/batch"):
                wanted = json.loads(self.body)["objects"]
                objects = [{**each, "actions": {"upload": {"href": f"{hub.address}/large/{each['oid']}"}}} for each in
                           wanted if each["oid"] not in hub.large]  # fmt: skip
                known = [each for each in wanted if each["oid"] in hub.large]
                self._json({"transfer": "basic", "objects": objects + known})
            elif "/resolve/" in path:
                self._file(path[1:])
            else:
                self._refuse(404, "no such page")

        def _read_body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            pieces = []
            while size := int(self.rfile.readline(), 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)

        # --- models

        def _model(self, name: str) -> Repository | None:
            model = hub.models.get(name)
            is_known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            if model is None or (model.private and not is_known):
                self._refuse(404 if is_known else 401, "Repository not found", "RepoNotFound")
                return None
            return model

        def _commit_of(self, model: Repository, revision: str) -> str | None:
            commit = model.branches.get(revision, revision)
            if commit not in model.commits:
                self._refuse(404, f"Invalid rev id: {revision}", "RevisionNotFound")
                return None
            return commit

        def _create(self) -> None:
            asked = json.loads(self.body)
            name = f"{asked['organization']}/{asked['name']}"
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self._refuse(401, "Invalid credentials in Authorization header")
            elif name in hub.models:
                self._refuse(409, "You already created this model repo")
            else:
                hub.models[name] = Repository(private=asked.get("visibility") == "private")
                hub.models[name].commit({".gitattributes": b"*.safetensors filter=lfs\n"}, message="initial commit")
                self._json({"url": f"{hub.address}/{name}"})

        def _api(self, path: str) -> None:
            owner, name, *rest = path.split("/")
            model = self._model(f"{owner}/{name}")
            if model is None:
                return
            what, revision = (rest[0], "/".join(rest[1:])) if rest else ("revision", "main")
            below = ""
            if what == "tree":
                revision, _, below = revision.partition("/")
            if what == "branch":
                model.branches[revision] = model.branches["main"]
                self._json({})
                return
            commit = self._commit_of(model, revision)
            if commit is None:
                return
            files = model.commits[commit]
            if what == "preupload":
                asked = [each["path"] for each in json.loads(self.body)["files"]]
                modes = {True: "lfs", False: "regular"}
                self._json({"files": [{"path": each, "uploadMode": modes[each.endswith(".safetensors")],
                                       "shouldIgnore": False, "oid": None} for each in asked]})  # fmt: skip
            elif what == "tree":
                found = [each for each in described(files) if not below or each["path"].startswith(f"{below}/")]
                if found:
                    self._json(found)
                else:
                    self._refuse(404, f"{below} does not exist", "EntryNotFound")
            elif what == "paths-info":
                wanted = parse_qs(self.body.decode())["paths"]
                self._json([each for each in described(files) if each["path"] in wanted])
            elif what == "commit":
                self._commit(model, revision, commit)
            else:
                siblings = [{"rfilename": each} for each in sorted(files)]
                self._json({"id": f"{owner}/{name}", "modelId": f"{owner}/{name}", "sha": commit, "tags": [],
                            "private": model.private, "siblings": siblings})  # fmt: skip

        def _commit(self, model: Repository, branch: str, head: str) -> None:
            files, message = dict(model.commits[head]), ""
            for line in self.body.decode().splitlines():
                operation = json.loads(line)
                value = operation["value"]
                if operation["key"] == "header":
                    message = value["summary"]
                    if value.get("parentCommit", head) != head:
                        self._refuse(412, "A commit has happened since. Please refresh and try again.")
                        return
                elif operation["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif operation["key"] == "lfsFile":
                    files[value["path"]] = hub.large[value["oid"]]
                else:
                    assert operation["key"] == "deletedFile"
                    del files[value["path"]]
            commit = model.commit(files, branch, message)
            self._json({"success": True, "commitOid": commit, "commitUrl": f"{hub.address}/a/b/commit/{commit}"})

        def _file(self, path: str) -> None:
            name, _, place = path.partition("/resolve/")
            model = self._model(name)
            if model is None:
                return
            revision, _, file = place.partition("/")
            commit = self._commit_of(model, revision)
            if commit is None:
                return
            data = model.commits[commit].get(file)
            if data is None:
                self._refuse(404, "Entry not found", "EntryNotFound", {"X-Repo-Commit": commit})
                return
            tag = f'"{hashlib.sha1(data).hexdigest()}"'
            self._answer(data, headers={"X-Repo-Commit": commit, "ETag": tag})

        # --- answers

        def _json(self, value: Any) -> None:
            self._answer(json.dumps(value).encode())

        def _refuse(self, status: int, message: str, code: str = "", headers: dict[str, str] | None = None) -> None:
            all_headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {}), **(headers or {})}
            self._answer(json.dumps({"error": message}).encode(), status, all_headers)

        def _answer(self, data: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            usual = {"Content-Type": "application/json", "Content-Length": str(len(data))}
            for name, value in {**usual, **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    return Handler


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Yields a Hub that answers at its address."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(hub))
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
