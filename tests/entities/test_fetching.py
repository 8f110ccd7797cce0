"""`chessreg fetch`: a hub with Hugging Face's paths and redirects, downloads that break off, digests that differ."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import chess
import pytest
import torch

from chessreg.entities import adding
from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.games.datasets import bags
from chessreg.games.foreign import chessbench
from chessreg.models import hub
from chessreg.models.hub import format_hub_url, get_fetch_source
from chessreg.registry import tables
from chessreg.session import Session, open_session

MODEL = "/adamkarvonen/chess_llms/resolve/main/lichess_8layers_ckpt_no_optimizer.pt"
GAMES = "/datasets/adamkarvonen/chess_games/resolve/main/lichess_100mb.zip"
COMMIT = "c0ffee" + 34 * "0"
CSV = "WhiteElo,BlackElo,Result,transcript\n" + "".join(
    f"{1500 + n},1600,1-0,1.e4 e5 2.Nf3 Nc6 3.B{square} a6\n" for n, square in enumerate(("b5", "c4", "e2"))
)


class Hub(ThreadingHTTPServer):
    """Answers /resolve/ with a redirect that carries the digest, as the hub does, and serves the storage behind it."""

    daemon_threads = True
    break_at: int | None = None
    digests = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.told: dict[str, str] = {}  # message for a file whose digest is wrong
        self.moved: dict[str, str] = {}  # the path of a file in a renamed repository → its path now
        self.asked: list[tuple[str, str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append((self.command, self.path, asked))
        if (new := self.server.moved.get(self.path)) is not None:
            self.send_response(307)
            self.send_header("Location", new)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        content = self.server.files.get(self.path.removeprefix("/storage"))
        if content is None:
            return self.send_error(404)
        if self.path.startswith("/data"):
            return self.send_storage(content, asked)
        if not self.path.startswith("/storage"):
            digest = self.server.told.get(self.path) or hashlib.sha256(content).hexdigest()
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_port}/storage{self.path}")
            self.send_header("X-Repo-Commit", COMMIT)
            if self.server.digests:
                self.send_header("X-Linked-ETag", f'"{digest}"')
                self.send_header("X-Linked-Size", str(len(content)))
            self.send_header("Content-Length", "0")
            return self.end_headers()
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if start >= len(content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[start : self.server.break_at])
        self.close_connection = True
        return None

    def send_storage(self, content: bytes, asked: str | None) -> None:
        """As Google's storage does: MD5 and tag in headers."""
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if start >= len(content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        told = self.server.told.get(self.path) or base64.b64encode(hashlib.md5(content).digest()).decode()
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("x-goog-hash", "crc32c=AAAAAA==")
        if self.server.digests:
            self.send_header("x-goog-hash", f"md5={told}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[start : self.server.break_at])
        self.close_connection = True
        return None

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def model_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A tiny model in the author's file layout."""
    from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2

    shape = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 48, "vocab_size": 32}
    weights = {}
    for name, tensor in make_random_gpt2(GPT2Config(**shape), seed=1).weights().items():
        if not name.endswith(".bias"):
            weights[f"_orig_mod.{name}"] = tensor.t() if ".h." in name and tensor.dim() == 2 else tensor
    path = tmp_path_factory.mktemp("hub") / "ckpt.pt"
    torch.save({"model": weights, "model_args": {**shape, "bias": False, "dropout": 0.0}, "iter_num": 600_000}, path)
    return path.read_bytes()


@pytest.fixture
def server(model_bytes: bytes, tmp_path: Path) -> Iterator[Hub]:
    with zipfile.ZipFile(tmp_path / "games.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("lichess_100mb.csv", CSV)
    with Hub() as running:
        running.files = {MODEL: model_bytes, GAMES: (tmp_path / "games.zip").read_bytes()}
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def session(tmp_path: Path, server: Hub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as opened:
        yield opened


def fetched(session: Session, source: str, **settings: Any) -> Any:
    return adding.fetch_source(session.database, session.store, get_fetch_source(source), **settings)


def row_of(session: Session, table: Any) -> Any:
    with session.database.read() as sql:
        return sql.query(table).one()


def test_the_real_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert format_hub_url(get_fetch_source("karvonen/8layers")) == f"https://huggingface.co{MODEL}"
    assert format_hub_url(get_fetch_source("karvonen/16layers")).endswith("/main/lichess_16layers_ckpt_no_optimizer.pt")
    assert format_hub_url(get_fetch_source("karvonen/games")) == f"https://huggingface.co{GAMES}"
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    assert format_hub_url(get_fetch_source("karvonen/8layers"), revision="v1/x").startswith(
        "https://mirror.example/adamkarvonen/"
    )
    assert "/resolve/v1%2Fx/" in format_hub_url(get_fetch_source("karvonen/8layers"), revision="v1/x")
    with pytest.raises(NotFoundError, match="karvonen/9layers"):
        get_fetch_source("karvonen/9layers")
    with pytest.raises(BadInputError, match="not a URL"):
        format_hub_url(get_fetch_source("karvonen/8layers"), endpoint="mirror")


def test_a_model_arrives_verified_and_registered_with_its_origin(session: Session, server: Hub) -> None:
    seen: list[float] = []
    made = fetched(session, "karvonen/8layers", on_progress=lambda fraction, text: seen.append(fraction))
    assert made.is_new
    assert session.id("checkpoint", "karvonen-8layers") == made.id
    detail = row_of(session, tables.Checkpoint).detail
    assert detail["fetched"] == {
        "url": server.url + MODEL,
        "commit": COMMIT,
        "sha256": hashlib.sha256(server.files[MODEL]).hexdigest(),
        "published_sha256": True,
    }
    assert detail["source"]["sha256"] == detail["fetched"]["sha256"]
    assert detail["source"]["file"] == "lichess_8layers_ckpt_no_optimizer.pt"
    assert (seen[0], seen[-1]) == (0.0, 1.0)
    assert not [path for path in (session.store.root / "downloads").rglob("*") if path.is_file()]
    assert not fetched(session, "karvonen/8layers").is_new


def test_an_interrupted_download_goes_on_where_it_was(session: Session, server: Hub) -> None:
    server.break_at = 10_000
    with pytest.raises(ChessregError, match="broke at 10000 of") as caught:
        fetched(session, "karvonen/8layers")
    assert "resumes at this point" in caught.value.hint
    with session.database.read() as sql:
        assert sql.query(tables.Checkpoint).count() == 0
    server.break_at = None
    server.asked.clear()
    assert fetched(session, "karvonen/8layers").is_new
    assert ("GET", "/storage" + MODEL, "bytes=10000-") in server.asked


def test_a_wrong_digest_is_refused_and_nothing_kept(session: Session, server: Hub) -> None:
    server.told[MODEL] = 64 * "a"
    with pytest.raises(BadInputError, match=f"is damaged.*{64 * 'a'}"):
        fetched(session, "karvonen/8layers")
    assert not [path for path in (session.store.root / "downloads").rglob("*") if path.is_file()]
    with session.database.read() as sql:
        assert sql.query(tables.Checkpoint).count() == 0


def test_where_no_digest_is_published_what_arrived_is_said_and_nothing_is_gone_on_with(
    session: Session, server: Hub
) -> None:
    server.digests = False
    server.break_at = 10_000
    with pytest.raises(ChessregError, match="broke at 10000"):
        fetched(session, "karvonen/8layers")
    server.break_at = None
    server.asked.clear()
    fetched(session, "karvonen/8layers")
    assert [asked for method, _, asked in server.asked if method == "GET"] == [None, None]  # from the beginning
    origin = row_of(session, tables.Checkpoint).detail["fetched"]
    assert origin["published_sha256"] is False
    assert origin["sha256"] == hashlib.sha256(server.files[MODEL]).hexdigest()


def test_games_arrive_as_a_dataset_in_the_order_of_their_rows(session: Session, server: Hub) -> None:
    made = fetched(session, "karvonen/games", keep=True)
    row = row_of(session, tables.Dataset)
    assert (row.games, row.rating_scale, row.id) == (3, "lichess", made.id)
    assert row.report["fetched"]["sha256"] == hashlib.sha256(server.files[GAMES]).hexdigest()
    assert session.dataset("karvonen-games").table(["white_elo"])["white_elo"].to_pylist() == [1500, 1501, 1502]
    kept = session.store.root / "downloads" / "adamkarvonen--chess_games" / "lichess_100mb.zip"
    assert kept.read_bytes() == server.files[GAMES]


def test_another_file_of_the_repository_and_a_missing_one(session: Session, server: Hub) -> None:
    other = "randominit_8layers_ckpt_no_optimizer.pt"
    server.files[MODEL.replace("lichess_8layers_ckpt_no_optimizer.pt", other)] = server.files[MODEL]
    fetched(session, "karvonen/8layers", file=other, name="untrained")
    assert row_of(session, tables.Checkpoint).detail["source"]["file"] == other
    with pytest.raises(NotFoundError, match=r"http.* does not exist") as caught:
        fetched(session, "karvonen/8layers", file="nothing.pt")
    assert caught.value.hint.endswith("lists its files")
    with pytest.raises(BadInputError, match="not a file of a repository"):
        fetched(session, "karvonen/8layers", file="../../elsewhere.pt")


def test_no_network_says_so(session: Session) -> None:
    with pytest.raises(ChessregError, match=r"cannot read http://127\.0\.0\.1:9"):
        fetched(session, "karvonen/8layers", endpoint="http://127.0.0.1:9")


def test_a_renamed_repository_is_followed(session: Session, server: Hub) -> None:
    server.moved = {MODEL: MODEL.replace("chess_llms", "renamed")}
    server.files[server.moved[MODEL]] = server.files.pop(MODEL)
    fetched(session, "karvonen/8layers")
    origin = row_of(session, tables.Checkpoint).detail["fetched"]
    assert (origin["published_sha256"], origin["commit"]) == (True, COMMIT)


def test_the_command_lists_what_there_is_and_imports_it(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from chessreg.cli.root import run_command_line

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    assert run_command_line(["fetch", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == [*hub.SOURCES, *chessbench.SOURCES]
    assert run_command_line(["fetch", "karvonen/8layers", "--name", "his", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["name"], made["source_format"], made["fetched_from"]) == ("his", "nanogpt", server.url + MODEL)
    assert run_command_line(["fetch", "karvonen/64layers"]) == 3
    assert "karvonen/16layers" in capsys.readouterr().err


def test_a_download_that_fails_makes_nothing(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from chessreg.cli.root import run_command_line

    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    server.told[MODEL] = 64 * "a"
    for words, status in (
        (["karvonen/8layers", "--file", "nothing.pt"], 3),
        (["karvonen/8layers", "--endpoint", "http://127.0.0.1:9"], 1),
        (["karvonen/8layers"], 4),
        (["chessbench/puzzles", "--revision", "v1"], 4),
    ):
        assert run_command_line(["fetch", *words]) == status
        assert "made the registry" not in capsys.readouterr().err
        assert list(folder.iterdir()) == []
    server.files[MODEL], server.told = b"Call me Ishmael.", {}
    assert run_command_line(["fetch", "karvonen/8layers"]) == 4
    assert not (folder / ".chessreg" / "registry.db").exists()


@pytest.mark.parametrize("source", ["karvonen/8layers", "karvonen/games"])  # without a digest of the games
def test_the_first_download_is_made_once_and_then_the_registry(
    source: str, server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chessreg.cli.root import run_command_line

    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    assert run_command_line(["fetch", source]) == 0
    assert [method for method, path, _ in server.asked if not path.startswith("/storage")].count("GET") == 1
    assert (folder / ".chessreg" / ".gitignore").read_text() == "*\n"


STATES = "/data/test/state_value_data.bag"


@pytest.fixture
def states(server: Hub) -> bytes:
    """A bag of 300 win probabilities on the server."""
    board = chess.Board()
    data, ends = b"", b""
    for number in range(300):
        data += bags.encode_record(board.fen(), None, number / 300)
        ends += struct.pack("<q", len(data))
    server.files[STATES] = data + ends
    return server.files[STATES]


@pytest.mark.parametrize("digests", [True, False])
def test_a_bag_of_chessbench_that_breaks_off_is_gone_on_with(
    session: Session, server: Hub, states: bytes, digests: bool
) -> None:
    """Also if the storage reports no MD5: then its tag shows that the file is unchanged."""
    server.digests, server.break_at = digests, 10_000
    with pytest.raises(ChessregError, match="broke at 10000 of"):
        fetched(session, "chessbench/test/state_value", endpoint=server.url)
    with session.database.read() as sql:
        assert sql.query(tables.Dataset).count() == 0
    server.break_at = None
    server.asked.clear()
    made = fetched(session, "chessbench/test/state_value", endpoint=server.url)
    assert ("GET", STATES, "bytes=10000-") in server.asked
    row = row_of(session, tables.Dataset)
    assert (row.id, row.plies, row.licence, row.rating_scale) == (made.id, 300, "CC-BY-4.0", None)
    assert row.report["fetched"] == {
        "url": server.url + STATES, "commit": None, "sha256": hashlib.sha256(states).hexdigest(),
        "published_sha256": digests,
    }  # fmt: skip
    assert session.id("dataset", "chessbench-test-state-value") == made.id
    assert not [path for path in (session.store.root / "downloads").rglob("*") if path.is_file()]


def test_a_part_of_a_file_that_changed_is_thrown_away(session: Session, server: Hub, states: bytes) -> None:
    server.digests, server.break_at = False, 10_000
    with pytest.raises(ChessregError, match="broke at 10000"):
        fetched(session, "chessbench/test/state_value", endpoint=server.url)
    server.break_at = None
    changed = bags.encode_record(chess.STARTING_FEN, None, 0.75)
    server.files[STATES] = changed + struct.pack("<q", len(changed))
    server.asked.clear()
    fetched(session, "chessbench/test/state_value", endpoint=server.url)
    assert [asked for method, _, asked in server.asked if method == "GET"] == [None]
    assert row_of(session, tables.Dataset).plies == 1


def test_files_of_chessbench_with_another_digest_are_refused(session: Session, server: Hub, states: bytes) -> None:
    server.told[STATES] = base64.b64encode(bytes(16)).decode()
    with pytest.raises(BadInputError, match=f"is damaged: its MD5 is .* the published one {32 * '0'}"):
        fetched(session, "chessbench/test/state_value", endpoint=server.url)
    server.files["/data/test/behavioral_cloning_data.bag"] = states
    with pytest.raises(BadInputError, match=r"is damaged: its SHA-256 is .* the published one fc1d27fc98"):
        fetched(session, "chessbench/test/behavioral_cloning", endpoint=server.url)
    with pytest.raises(NotFoundError, match=r"http.*puzzles\.csv does not exist"):
        fetched(session, "chessbench/puzzles", endpoint=server.url)
    with pytest.raises(BadInputError, match="no revisions"):
        fetched(session, "chessbench/puzzles", endpoint=server.url, revision="v1")
    assert not [path for path in (session.store.root / "downloads").rglob("*.bag*") if path.is_file()]


def test_the_addresses_of_chessbench() -> None:
    assert chessbench.format_chessbench_url(chessbench.SOURCES["chessbench/train/action_value"]) == (
        "https://storage.googleapis.com/searchless_chess/data/train/action_value-00000-of-02148_data.bag"
    )
    with pytest.raises(BadInputError, match="not a URL"):
        chessbench.format_chessbench_url(chessbench.SOURCES["chessbench/puzzles"], endpoint="mirror")
