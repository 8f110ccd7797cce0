"""Fetching a Lichess month from a server with the official layout."""

from __future__ import annotations

import errno
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.games.foreign.lichess import fetch_month, format_checksum_url, format_month_url

NAME = "lichess_db_standard_rated_2013-01.pgn.zst"
CONTENT = bytes(range(256)) * 4000  # 1 MB: several chunks


class Server(ThreadingHTTPServer):
    """Serves /standard/<month> and /standard/sha256sums.txt, with ranges, and breaks the connection where a test
    requires it."""

    daemon_threads = True
    ranges = True
    break_at: int | None = None
    status = 200
    sums = f"{hashlib.sha256(CONTENT).hexdigest()}  {NAME}\n"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append((self.path, asked))
        if self.server.status != 200:
            return self.send_error(self.server.status)
        if self.path == "/standard/sha256sums.txt":
            return self.answer(200, self.server.sums.encode())
        if self.path != f"/standard/{NAME}":
            return self.send_error(404)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.ranges else 0
        if start >= len(CONTENT):
            return self.send_error(416)
        return self.answer(206 if start else 200, CONTENT[start:])

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = self.server.break_at if self.path.endswith(".zst") else None
        self.wfile.write(body[:cut])
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_official_addresses() -> None:
    assert format_month_url("2013-01") == f"https://database.lichess.org/standard/{NAME}"
    assert format_checksum_url() == "https://database.lichess.org/standard/sha256sums.txt"


@pytest.mark.parametrize("month", ["2013-1", "2012-12", "2013-13", "../etc", "2013-01\n", ""])
def test_what_is_no_month_is_refused(month: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError):
        fetch_month(month, tmp_path)


def test_a_month_arrives_verified_with_progress(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = fetch_month("2013-01", tmp_path / "new", server.url, lambda done, total: seen.append((done, total)))
    assert path == tmp_path / "new" / NAME
    assert path.read_bytes() == CONTENT
    assert (seen[0], seen[-1]) == ((0, len(CONTENT)), (len(CONTENT), len(CONTENT)))
    assert len(seen) > 3
    assert [file.name for file in path.parent.iterdir()] == [NAME]


def test_a_month_that_is_there_is_verified_and_not_fetched_again(server: Server, tmp_path: Path) -> None:
    fetch_month("2013-01", tmp_path, server.url)
    server.asked.clear()
    fetch_month("2013-01", tmp_path, server.url)
    assert [path for path, _ in server.asked] == ["/standard/sha256sums.txt"]
    (tmp_path / NAME).write_bytes(b"something else")
    with pytest.raises(BadInputError, match="not the published file"):
        fetch_month("2013-01", tmp_path, server.url)


def test_a_broken_download_goes_on_from_where_it_was(server: Server, tmp_path: Path) -> None:
    server.break_at = 300_000
    with pytest.raises(ChessregError, match="broke at 300000 of 1024000 bytes") as caught:
        fetch_month("2013-01", tmp_path, server.url)
    assert "resumes at this point" in caught.value.hint
    part = tmp_path / f"{NAME}.part"
    assert part.stat().st_size == 300_000
    assert not (tmp_path / NAME).exists()
    server.break_at = None
    server.asked.clear()
    assert fetch_month("2013-01", tmp_path, server.url).read_bytes() == CONTENT
    assert (f"/standard/{NAME}", "bytes=300000-") in server.asked
    assert not part.exists()


def test_a_complete_part_is_only_verified(server: Server, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT)
    assert fetch_month("2013-01", tmp_path, server.url).read_bytes() == CONTENT


def test_a_server_without_ranges_sends_the_file_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / f"{NAME}.part").write_bytes(b"x" * 1000)
    assert fetch_month("2013-01", tmp_path, server.url).read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(b"x" * 1000)  # not a beginning of the file
    with pytest.raises(BadInputError, match="is damaged"):
        fetch_month("2013-01", tmp_path, server.url)
    assert list(tmp_path.iterdir()) == []
    assert fetch_month("2013-01", tmp_path, server.url).read_bytes() == CONTENT


def test_an_unlisted_month_and_a_missing_file_are_not_found(server: Server, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not list lichess_db_standard_rated_2031-05"):
        fetch_month("2031-05", tmp_path, server.url)
    server.sums += f"{'0' * 64}  lichess_db_standard_rated_2031-05.pgn.zst\n"
    with pytest.raises(NotFoundError, match=r"2031-05\.pgn\.zst does not exist"):
        fetch_month("2031-05", tmp_path, server.url)


def test_a_failing_server_and_no_network_say_so(server: Server, tmp_path: Path) -> None:
    server.status = 503
    with pytest.raises(ChessregError, match="answered 503"):
        fetch_month("2013-01", tmp_path, server.url)
    with pytest.raises(ChessregError, match=r"cannot read http://127\.0\.0\.1:9/standard/sha256sums\.txt"):
        fetch_month("2013-01", tmp_path, "http://127.0.0.1:9")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_says_so_and_keeps_what_arrived(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(done: int, total: int | None) -> None:
        if done > 500_000:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ChessregError, match="the disk is full") as caught:
        fetch_month("2013-01", tmp_path, server.url, full)
    assert "free some space" in caught.value.hint
    assert fetch_month("2013-01", tmp_path, server.url).read_bytes() == CONTENT


def test_a_folder_that_cannot_be_made_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match="cannot write"):
        fetch_month("2013-01", tmp_path / "file" / "folder", server.url)
