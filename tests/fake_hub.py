"""A Hugging Face hub on this machine: the endpoints that huggingface_hub calls to create, list, upload and download.

Repositories are lists of commits, each a mapping of paths to bytes. Large files travel by the LFS protocol (batch,
PUT, verify) and are downloaded from a redirect, as on the real hub. With `use_xet` they travel by the Xet protocol
instead, through the library hf_xet. A token `writer` may write, `reader` may read, `stranger` has no rights.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import huggingface_hub.utils._http
import pytest

LFS_SUFFIXES = (".safetensors", ".parquet", ".pt", ".bin")
PAGE = 1000
USERS = {"writer": "write", "reader": "read", "stranger": "none"}


class FakeRepository:
    """A repository: its visibility and commits, oldest first."""

    def __init__(self, private: bool) -> None:
        self.private = private
        self.commits: list[tuple[str, dict[str, bytes]]] = []
        self.messages: list[str] = []
        self.listed_sizes: dict[str, int] = {}  # sizes that the listing states instead of the real ones
        self.commit({}, "initial commit")

    def commit(self, files: dict[str, bytes], message: str = "a commit") -> str:
        whole = {**(self.commits[-1][1] if self.commits else {}), **files}
        id = hashlib.sha1(f"{len(self.commits)} {sorted(whole)} {message}".encode()).hexdigest()
        self.commits.append((id, whole))
        self.messages.append(message)
        return id

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[-1][1]

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        if revision == "main":
            return self.commits[-1]
        return next((commit for commit in self.commits if commit[0] == revision), None)


class FakeHub(ThreadingHTTPServer):
    """The hub. `fail` makes the requests whose path matches fail: a status, or 0 to close the connection."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[tuple[str, str], FakeRepository] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.authorized: list[tuple[str, str | None]] = []  # path and Authorization header
        self.fail: dict[str, int] = {}
        self.break_at: int | None = None
        self.has_xet = False
        self.xet_shards: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, name: str, files: dict[str, bytes], kind: str = "model", private: bool = False) -> FakeRepository:
        made = self.repositories[kind, name] = FakeRepository(private)
        made.commit(files)
        return made


class Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = urllib.parse.urlsplit(self.path).path
        self.server.requests.append((self.command, urllib.parse.unquote(path)))
        self.server.authorized.append((path, self.headers.get("Authorization")))
        chunked = self.headers.get("Transfer-Encoding") == "chunked"
        body = self.read_chunks() if chunked else self.rfile.read(int(self.headers.get("Content-Length") or 0))
        for pattern, status in self.server.fail.items():
            if re.search(pattern, path):
                if not status:
                    self.close_connection = True
                    self.connection.close()
                    return None
                return self.refuse(status)
        if "/xet-write-token/" in path and self.server.has_xet:
            return self.grant_xet()
        if path.startswith("/xet/"):
            return self.store_xet(path, body)
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if path == "/api/validate-yaml":
            return self.send({"errors": [], "warnings": []})
        if path.startswith("/lfs/"):
            return self.transfer(path.removeprefix("/lfs/"), body)
        if match := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            return self.batch(json.loads(body))
        if match := re.fullmatch(r"/api/(model|dataset)s/([^/]+/[^/]+)(?:/(\w+)/([^/]+))?(/.*)?", path):
            kind, name, action, revision, _ = match.groups()
            return self.use(kind, name, action, urllib.parse.unquote(revision or "main"), body)
        if match := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.resolve("dataset" if match[1] else "model", *match.groups()[1:])
        return self.refuse(404)

    def read_chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def grant_xet(self) -> None:
        url, expires = f"{self.server.url}/xet", int(time.time()) + 3600
        headers = {"X-Xet-Access-Token": "t", "X-Xet-Token-Expiration": str(expires), "X-Xet-Cas-Url": url}
        return self.send({"accessToken": "t", "exp": expires, "casUrl": url}, headers)

    def store_xet(self, path: str, body: bytes) -> None:
        """Accept a block of chunks, and keep the record (shard) that files consist of them."""
        if path.startswith("/xet/v1/xorbs/"):
            return self.send({"was_inserted": True})
        if path == "/xet/v2/shards":
            self.server.xet_shards.append(body)
            return self.send({"type": "result", "result": 1})
        return self.refuse(404)  # no chunk is known, and blocks are sent here

    def is_xet_file(self, digest: str) -> bool:
        """Whether a shard has this SHA-256, which it keeps as four little-endian numbers."""
        parts = [bytes.fromhex(digest[place : place + 16])[::-1] for place in range(0, 64, 16)]
        return any(b"".join(parts) in shard or bytes.fromhex(digest) in shard for shard in self.server.xet_shards)

    @property
    def rights(self) -> str:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        return USERS.get(token, "unknown" if token else "none")

    def create(self, wanted: dict[str, Any]) -> None:
        if self.rights == "unknown":
            return self.refuse(401)
        if self.rights != "write":
            return self.refuse(403, "You don't have the rights to create a model under this namespace")
        key = wanted.get("type", "model"), f"{wanted['organization']}/{wanted['name']}"
        if key in self.server.repositories:
            return self.refuse(409)
        self.server.repositories[key] = FakeRepository(wanted.get("visibility") == "private")
        return self.send({"url": self.format_page(*key), "name": key[1]})

    def use(self, kind: str, name: str, action: str | None, revision: str, body: bytes) -> None:
        found = self.server.repositories.get((kind, name))
        if found is None or (found.private and self.rights not in ("write", "read")):
            return self.refuse(404 if self.rights in ("write", "read") else 401, code="RepoNotFound")
        if action == "preupload":
            if self.rights != "write":
                return self.refuse(403, "You need write access")
            return self.send({"files": [
                {"path": file["path"], "uploadMode": "lfs" if file["path"].endswith(LFS_SUFFIXES) else "regular",
                 "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]})  # fmt: skip
        if action == "commit":
            return self.commit(found, body, self.format_page(kind, name))
        at = found.at(revision)
        if at is None:
            return self.refuse(404, code="RevisionNotFound")
        if action == "tree":
            return self.list_tree(found, at)
        return self.send({"id": name, "modelId": name, "sha": at[0], "private": found.private, "siblings": []})

    def format_page(self, kind: str, name: str) -> str:
        return f"{self.server.url}/{'datasets/' if kind == 'dataset' else ''}{name}"

    def commit(self, found: FakeRepository, body: bytes, page: str) -> None:
        files: dict[str, bytes] = {}
        lines = [json.loads(line) for line in body.splitlines()]
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "lfsFile":
                if self.is_xet_file(value["oid"]):
                    files[value["path"]] = value["oid"].encode()
                    continue
                if value["oid"] not in self.server.objects:
                    return self.refuse(400, "LFS pointer pointed to a file that does not exist")
                files[value["path"]] = self.server.objects[value["oid"]]
            else:
                files[value["path"]] = base64.b64decode(value["content"])
        id = found.commit(files, lines[0]["value"]["summary"])
        return self.send({"commitUrl": f"{page}/commit/{id}", "commitOid": id})

    def list_tree(self, found: FakeRepository, at: tuple[str, dict[str, bytes]]) -> None:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        start = int(query.get("cursor", ["0"])[0])
        entries: list[dict[str, Any]] = []
        for path, content in list(at[1].items())[start : start + PAGE]:
            size = found.listed_sizes.get(path, len(content))
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry: dict[str, Any] = {"type": "file", "path": path, "size": size, "oid": blob}
            if path.endswith(LFS_SUFFIXES):
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": digest, "size": size, "pointerSize": 130}
            entries.append(entry)
        link = {}
        if start + PAGE < len(at[1]):
            place = urllib.parse.urlsplit(self.path).path
            link = {"Link": f'<{self.server.url}{place}?recursive=true&cursor={start + PAGE}>; rel="next"'}
        return self.send(entries, link)

    def batch(self, wanted: dict[str, Any]) -> None:
        listed = []
        for one in wanted["objects"]:
            answer = {"oid": one["oid"], "size": one["size"]}
            if one["oid"] not in self.server.objects:
                href = f"{self.server.url}/lfs/{one['oid']}"
                answer["actions"] = {"upload": {"href": href}, "verify": {"href": f"{href}?verify"}}
            listed.append(answer)
        return self.send({"transfer": "basic", "objects": listed})

    def transfer(self, digest: str, body: bytes) -> None:
        if self.command == "PUT":
            self.server.objects[hashlib.sha256(body).hexdigest()] = body
            return self.send({})
        if self.command == "POST":
            return self.send({}) if digest in self.server.objects else self.refuse(404)
        return self.send_content(self.server.objects[digest])

    def resolve(self, kind: str, name: str, revision: str, path: str) -> None:
        found = self.server.repositories.get((kind, name))
        if found is None or (found.private and self.rights not in ("write", "read")):
            return self.refuse(401)
        at = found.at(urllib.parse.unquote(revision))
        content = at[1].get(urllib.parse.unquote(path)) if at else None
        if content is None:
            return self.refuse(404)
        if not path.endswith(LFS_SUFFIXES):
            return self.send_content(content)
        digest = hashlib.sha256(content).hexdigest()
        self.server.objects[digest] = content
        self.send_response(302)
        self.send_header("Location", f"http://localhost:{self.server.server_port}/lfs/{digest}")
        self.send_header("Content-Length", "0")
        return self.end_headers()

    def send_content(self, content: bytes) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        start = int(asked[1]) if asked else 0
        stop = min(int(asked[2]) + 1, len(content)) if asked and asked[2] else len(content)
        if start >= len(content) and content:
            return self.refuse(416)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        self.wfile.write(content[start : min(stop, self.server.break_at or stop)])
        if self.server.break_at is not None:
            self.close_connection = True
        return None

    def send(self, document: Any, headers: dict[str, str] | None = None) -> None:
        text = json.dumps(document).encode()
        self.send_response(200)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def refuse(self, status: int, message: str = "", code: str = "") -> None:
        text = json.dumps({"error": message or f"status {status}"}).encode()
        self.send_response(status)
        for name, value in {"X-Error-Code": code, "X-Error-Message": message}.items():
            if value:
                self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def run_fake_hub(
    monkeypatch: pytest.MonkeyPatch, token: str | None = "writer", use_xet: bool = False
) -> Iterator[FakeHub]:
    """Yield a running hub, with the environment variables that lead there. Failed requests are repeated without a
    pause."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", not use_xet)
    impatient = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
    monkeypatch.setattr(huggingface_hub.utils._http, "time", impatient)
    if token is None:
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", "/nonexistent/token")
    else:
        monkeypatch.setenv("HF_TOKEN", token)
    with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        thread = threading.Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()
