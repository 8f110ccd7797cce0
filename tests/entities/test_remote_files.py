"""Datasets of remote files: a web server, a bucket, and failures on the way."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from chessreg.entities import load_entity
from chessreg.entities.adding import AddedDataset, FileFilter, add_dataset
from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.datasets import remote
from chessreg.games.datasets.bags import encode_record, write_bag
from chessreg.games.datasets.remote import RemoteFile, list_input_files
from chessreg.registry import tables
from chessreg.session import Session

pytest.importorskip("obstore", reason="the extra s3 is not installed")
START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
PGN = "".join(f'[Event "{n}"]\n[Result "1-0"]\n\n1. e4 e5 2. {move} 1-0\n\n' for n, move in enumerate(("Nf3", "Bc4")))
BUCKET = "lake"


class Web(ThreadingHTTPServer):
    """A web server that gives ranges, and lists the bucket `lake` as S3 does. `gone_after` bytes it answers 503."""

    daemon_threads = True
    gone_after: int | None = None
    silent: threading.Event | None = None  # until it is set, no range is sent

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.sent_bytes = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Web
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if "list-type" in parts.query:
            return self.send(200, self.list_bucket(parse_qs(parts.query).get("prefix", [""])[0]))
        content = self.server.files.get(unquote(parts.path))
        if content is None:
            return self.send(404, b"")
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if asked is None:
            return self.send(200, content)
        if self.server.silent is not None:
            self.server.silent.wait(60)
        start, stop = int(asked[1]), min(int(asked[2]) + 1, len(content))
        if self.server.gone_after is not None and stop > self.server.gone_after:
            return self.send(403, b"")
        self.server.sent_bytes += stop - start
        return self.send(206, content[start:stop], f"bytes {start}-{stop - 1}/{len(content)}")

    def list_bucket(self, prefix: str) -> bytes:
        entry = "<Contents><Key>{}</Key><LastModified>2026-11-26T00:00:00.000Z</LastModified><ETag>x</ETag>" \
            "<Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>"  # fmt: skip
        keys = {path.removeprefix(f"/{BUCKET}/"): len(data) for path, data in self.server.files.items()}
        listed = "".join(entry.format(escape(key), size) for key, size in keys.items() if key.startswith(prefix))
        head = f"<Name>{BUCKET}</Name><IsTruncated>false</IsTruncated>"
        return f"<ListBucketResult>{head}{listed}</ListBucketResult>".encode()

    def send(self, status: int, content: bytes, content_range: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Last-Modified", "Thu, 26 Nov 2026 00:00:00 GMT")
        self.send_header("ETag", '"x"')
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    with Web() as server:
        for name, value in (("ENDPOINT_URL", server.url), ("ALLOW_HTTP", "true"), ("REGION", "x"),
                            ("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b")):  # fmt: skip
            monkeypatch.setenv(f"AWS_{name}", value)
        remote._open_place.cache_clear()
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def pack_zip(text: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("games.pgn", text)
    return file.getvalue()


def pack_parquet(columns: dict[str, list[Any]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def pack_bag(folder: Path) -> bytes:
    write_bag(folder / "made.bag", [encode_record(START, "e2e4"), encode_record(START, "d2d4")])
    return (folder / "made.bag").read_bytes()


FORMATS: dict[str, Callable[[Path], bytes]] = {
    "games.pgn": lambda folder: PGN.encode(),
    "games.pgn.zst": lambda folder: zstandard.compress(PGN.encode()),
    "games.zip": lambda folder: pack_zip(PGN.encode()),
    "a b+c.csv": lambda folder: b"transcript,Result\n1.e4 e5,1-0\n1.d4,0-1\n",
    "games.parquet": lambda folder: pack_parquet({"movetext": ["1. e4 e5 1-0", "1. d4 0-1"], "Result": ["1-0", "0-1"]}),
    "positions.csv": lambda folder: f"fen,best_uci\n{START},e2e4\n".encode(),
    "positions.parquet": lambda folder: pack_parquet({"fen": [START], "best": ["e2e4"]}),
    "positions.bag": pack_bag,
}


def add(session: Session, *places: str | Path, **options: object) -> AddedDataset:
    files = [file for place in places for file in list_input_files(place)]
    return add_dataset(session.database, session.store, files, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_is_the_same_dataset_wherever_its_bytes_are(
    session: Session, web: Web, tmp_path: Path, name: str
) -> None:
    content = FORMATS[name](tmp_path)
    web.files = {f"/std/{name}": content, f"/{BUCKET}/std/{name}": content}
    (tmp_path / name).write_bytes(content)
    first = add(session, f"{web.url}/std/{name}", name="far")
    assert first.is_new
    assert add(session, f"s3://{BUCKET}/std/{name}", name="bucket").id == first.id
    assert add(session, tmp_path / name, name="near") == AddedDataset(first.id, first.artifact, False)
    with session.database.read() as sql:
        row = sql.get_one(tables.Dataset, first.id)
        command, _ = load_entity("dataset").describe_origin(sql, row)
    assert command == shlex.join(["chessreg", "dataset", "add", f"{web.url}/std/{name}"])
    assert row.source == name


def test_shards_of_a_bucket_are_one_dataset_in_the_order_of_their_names(
    session: Session, web: Web, tmp_path: Path
) -> None:
    shards = {
        f"year=2013/{n:02d}.parquet": pack_parquet(
            {"movetext": [f"1. {move}"], "Site": [f"https://lichess.org/{n:08d}"]}
        )
        for n, move in ((10, "e4"), (2, "d4"), (1, "c4"))
    }
    web.files = {f"/{BUCKET}/{key}": data for key, data in shards.items()} | {f"/{BUCKET}/year=2013/x/3.parquet": b"no"}
    made = add(session, f"s3://{BUCKET}/year=2013/*.parquet", name="year")
    with session.database.read() as sql:
        row = sql.get_one(tables.Dataset, made.id)
    assert row.source == "01.parquet, 02.parquet, 10.parquet"
    for key, data in shards.items():
        (tmp_path / Path(key).name).write_bytes(data)
    assert add(session, *sorted(tmp_path.glob("??.parquet"))).id == made.id


def test_a_pattern_and_an_address_without_a_file_are_refused(session: Session, web: Web) -> None:
    for place in (f"{web.url}/none.pgn", f"s3://{BUCKET}/none.pgn"):
        with pytest.raises(NotFoundError, match=f"{place} does not exist"):
            add(session, place)
    with pytest.raises(NotFoundError, match="no file matches s3://lake/none/"):
        add(session, f"s3://{BUCKET}/none/*.pgn")
    with pytest.raises(BadInputError, match="does not list its files"):
        add(session, f"{web.url}/*.pgn")
    for secret in ("https://me:pw@127.0.0.1/x.pgn", "https://127.0.0.1/x.pgn?X-Amz-Signature=pw"):
        with pytest.raises(BadInputError, match=r"the address of x\.pgn must not hold credentials") as refused:
            add(session, secret)
        assert "pw" not in str(refused.value)


@pytest.mark.parametrize("name", ["games.pgn", "games.parquet"])
def test_a_server_that_stops_to_answer_is_not_a_damaged_file(
    session: Session, web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """`--salvage` would keep the games before damage, and register a part of the file as the whole."""
    moves = [f"1. e4 e5 2. Nf3 {{{n}}} 1-0" for n in range(20_000)]
    content = "\n\n".join(moves).encode() if name == "games.pgn" else pack_parquet({"movetext": moves})
    web.files[f"/{name}"], web.gone_after = content, len(content) // 2
    if name == "games.parquet":  # its columns are at the end
        monkeypatch.setattr(remote.RemoteFile, "_read_range", fail_after(remote.RemoteFile._read_range, 3))
        web.gone_after = None
    with pytest.raises(BadInputError, match=f"{web.url}/{name} cannot be read: "):
        add(session, f"{web.url}/{name}", file_filter=FileFilter(salvage=True))
    with session.database.read() as sql:
        assert sql.query(tables.Dataset).count() == 0
    assert not list(tmp_path.rglob("staging/*/*"))


def fail_after(read: Callable[[RemoteFile, int, int], bytes], calls: int) -> Callable[[RemoteFile, int, int], bytes]:
    done = iter(range(calls))

    def read_or_fail(self: RemoteFile, start: int, stop: int) -> bytes:
        if next(done, None) is None:
            self._raise_read_error(RuntimeError("connection reset"))
        return read(self, start, stop)

    return read_or_fail


def test_a_name_of_another_dataset_is_refused_before_anything_is_read(
    session: Session, web: Web, tmp_path: Path
) -> None:
    (tmp_path / "a.pgn").write_text(PGN)
    add(session, tmp_path / "a.pgn", name="taken")
    web.files["/b.pgn"] = PGN.replace("e5", "c5").encode() * 30_000
    with pytest.raises(BadInputError, match="taken"):
        add(session, f"{web.url}/b.pgn", name="taken")
    assert web.sent_bytes < len(web.files["/b.pgn"])
    web.files["/b.pgn"] = PGN.encode() * 2
    made = add(session, f"{web.url}/b.pgn", name="far")
    assert add(session, f"{web.url}/b.pgn", name="far").id == made.id
    web.files["/b.pgn"] += PGN.encode()
    with pytest.raises(BadInputError, match="far"):
        add(session, f"{web.url}/b.pgn", name="far")
    with session.database.read() as sql:
        assert [row.id for row in sql.query(tables.Dataset) if row.report.get("addresses")] == [made.id]


def test_only_the_head_of_a_file_is_read_to_recognize_it(web: Web) -> None:
    web.files["/big.pgn"] = PGN.encode() * 200_000
    with RemoteFile(f"{web.url}/big.pgn").open() as file:
        assert file.read(4096) == web.files["/big.pgn"][:4096]
    assert web.sent_bytes <= remote._FIRST_RANGE_BYTES


def test_ctrl_c_ends_the_wait_for_a_server_and_leaves_nothing(
    session: Session, web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """obstore waits outside Python, and would not notice the signal before the server answers."""
    web.files["/games.pgn"], web.silent = PGN.encode() * 200_000, threading.Event()
    timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            add(session, f"{web.url}/games.pgn")
    finally:
        timer.cancel()
        web.silent.set()
    assert time.monotonic() - began < 20
    assert not list(session.store.tmp.iterdir())
