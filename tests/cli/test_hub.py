"""`chessreg push --to hf:…` and `chessreg fetch hf:…` against a local server with the hub's endpoints."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub._commit_api
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from sqlalchemy import select

from chessreg.cards import hide_private_text
from chessreg.entities.fetched import read_fetch_record
from chessreg.games.datasets import remote
from chessreg.models import hub_repository
from chessreg.registry import tables
from chessreg.runs.fitted import load_direction, load_probe
from chessreg.session import Session, open_session
from tests.cli.conftest import Here
from tests.fake_hub import FakeHub, run_fake_hub
from tests.quick import quick_first

torch.set_num_threads(1)
GOLDEN_SAES = Path(__file__).parents[1] / "fixtures" / "saes"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with run_fake_hub(monkeypatch) as running:
        yield running


@pytest.fixture
def at(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    """Commands typed in the world's registry."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHESSREG_REGISTRY", str(world / "registry.db"))
    monkeypatch.setenv("CHESSREG_STORE", str(world / "store"))
    return Here(tmp_path, capsys)


@pytest.fixture
def elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that moves to a new registry, as on another machine."""

    def move() -> Here:
        folder = tmp_path / "elsewhere"
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.delenv("CHESSREG_REGISTRY")
        monkeypatch.delenv("CHESSREG_STORE")
        made = Here(folder, capsys)
        assert made("init") == 0
        return made

    return move


def opened(folder: Path) -> Session:
    return open_session(str(folder / ".chessreg" / "registry.db"), folder / ".chessreg" / "store")


def read_positions(session: Session, name: str) -> pa.Table:
    items, _ = session.inputs.items(session.inputs.reference("dataset", name))
    return pq.read_table(items.folder / "positions.parquet")


def fetch(here: Here, address: str) -> dict[str, Any]:
    """Return the report of `fetch`, with the command of its only content as words."""
    report: dict[str, Any] = here.json("fetch", address)
    [content] = report["contents"]
    assert content["command"], content
    return {**report, "words": content["command"].removeprefix("chessreg ").split()}


# -- round trips -----------------------------------------------------------------------------------------------------


def test_a_checkpoint_comes_back_with_equal_logits(hub: FakeHub, at: Here, elsewhere: Any, world: Path) -> None:
    pushed = at.json("push", "reference", "--to", "hf:me/reference")
    assert pushed["created"]
    assert hub.repositories["model", "me/reference"].private
    assert set(pushed["changed"]) == set(pushed["files"]) == set(hub.repositories["model", "me/reference"].files)
    _, matter, text = hub.repositories["model", "me/reference"].files["README.md"].decode().split("---\n", 2)
    assert yaml.safe_load(matter)["library_name"] == "transformers"
    assert "hf:me/reference" in text
    with open_session(str(world / "registry.db"), world / "store") as session:
        tokens = torch.randint(32, (2, 60), generator=torch.Generator().manual_seed(0))
        expected = session.model("reference").logits(tokens)
    there = elsewhere()
    report = fetch(there, "hf:me/reference")
    row = there.json(*report["words"][:-1], "theirs")
    with opened(there.folder) as session:
        assert torch.equal(session.model("theirs").logits(tokens), expected)
    fetched = there.json("checkpoint", "show", "theirs")["detail"]["fetched"]
    assert (fetched["repository"], fetched["commit"]) == ("hf:me/reference", report["commit"])
    assert row["fetched_from"] == f"{hub.url}/me/reference/tree/{report['commit']}"


def test_a_dataset_comes_back_with_equal_rows(hub: FakeHub, at: Here, elsewhere: Any, world: Path) -> None:
    at.json("push", "sample", "--to", "hf:me/games", "--public")
    made = hub.repositories["dataset", "me/games"]
    assert not made.private
    _, matter, _ = made.files["README.md"].decode().split("---\n", 2)
    assert yaml.safe_load(matter)["configs"] == [{"config_name": "games", "data_files": "games.parquet"}]
    with open_session(str(world / "registry.db"), world / "store") as session:
        expected = pq.read_table(session.dataset("sample").folder / "games.parquet")
    there = elsewhere()
    report = fetch(there, "hf:me/games")  # found as a dataset although the address does not contain `datasets`
    assert report["repository"] == "hf:datasets/me/games"
    there.json(*report["words"][:-1], "theirs")
    with opened(there.folder) as session:
        read = pq.read_table(session.dataset("theirs").folder / "games.parquet")
    assert expected.drop_columns(["row"]) == read.drop_columns(["row"])
    shown = there.json("dataset", "show", "theirs")["report"]["fetched"]
    assert (shown["repository"], shown["commit"]) == ("hf:datasets/me/games", report["commit"])


def test_positions_and_puzzles_come_back_with_equal_rows(
    hub: FakeHub, at: Here, elsewhere: Any, tmp_path: Path
) -> None:
    from tests.conftest import PUZZLES

    (tmp_path / "puzzles.csv").write_text(PUZZLES)
    (tmp_path / "positions.csv").write_text(
        "fen,best_move,eval_cp,ply,game_id\n"
        "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1,e2e4,35,0,abcdefgh\n"
        "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1,e7e5,-20,1,abcdefgh\n"
    )
    expected_of = {}
    for name in ("puzzles", "positions"):
        at.json("dataset", "add", tmp_path / f"{name}.csv", "--name", name)
        at.json("push", name, "--to", f"hf:me/{name}")
        with open_session(os.environ["CHESSREG_REGISTRY"], Path(os.environ["CHESSREG_STORE"])) as session:
            expected_of[name] = read_positions(session, name)
    there = elsewhere()
    for name, expected in expected_of.items():
        report = fetch(there, f"hf:datasets/me/{name}")
        there.json(*report["words"][:-1], name)
        with opened(there.folder) as session:
            read = read_positions(session, name)
        assert expected.drop_columns(["row"]) == read.drop_columns(["row"])
        assert len(read)


def test_a_part_of_a_dataset_is_pushed_alone(hub: FakeHub, at: Here, world: Path) -> None:
    at.json("push", "sample:test", "--to", "hf:me/part")
    content = hub.repositories["dataset", "me/part"].files["games.parquet"]
    with open_session(str(world / "registry.db"), world / "store") as session:
        games, part = session.inputs.dataset(session.inputs.reference("dataset", "sample:test"))
        expected = games.take(games.rows(part), ["text"])["text"].to_pylist()
    moves = pq.read_table(pa.BufferReader(content))["movetext"].to_pylist()
    assert [text.rpartition(" ")[0].strip() for text in moves] == [text.removeprefix(";").strip() for text in expected]


def test_probes_come_back_with_equal_readings(hub: FakeHub, at: Here, elsewhere: Any, world: Path) -> None:
    at.json("push", "reference", "--to", "hf:me/model")
    at.json("push", "reference-board", "--to", "hf:me/probes")
    card = hub.repositories["model", "me/probes"].files["README.md"].decode()
    assert "chessreg run probe --cache reference-fit" in card
    assert "accuracy" in card
    with open_session(str(world / "registry.db"), world / "store") as session:
        expected = [
            load_probe(session.inputs, session.inputs.reference("run:probe", "reference-board"), n) for n in (0, 1)
        ]
    there = elsewhere()
    there.json(*fetch(there, "hf:me/model")["words"][:-1], "reference")
    report = fetch(there, "hf:me/probes")
    words = [word if word != "MODEL" else "reference" for word in report["words"]]
    rows = there.json(*words, "--name", "theirs")
    assert [(row["label"], row["positions"], row["layer"]) for row in rows] == [
        ("piece", "dots", 0),
        ("piece", "dots", 1),
    ]
    assert rows[0]["train_games"] == 37
    residual = torch.randn(7, 32, generator=torch.Generator().manual_seed(1))
    with opened(there.folder) as session:
        run = session.inputs.reference("run:probe", "theirs")
        for layer, probe in enumerate(expected):
            mine = load_probe(session.inputs, run, layer)
            assert (mine.hook_point, mine.centred, mine.label) == (probe.hook_point, probe.centred, probe.label)
            assert torch.equal(mine.reader()(residual), probe.reader()(residual))
    options = there.json("runs", "show", "theirs")
    assert f"hf:me/probes@{report['commit']}" in json.dumps(options)


@pytest.mark.slow
def test_vectors_come_back_equal(hub: FakeHub, at: Here, elsewhere: Any, world: Path) -> None:
    at.json("push", "reference", "--to", "hf:me/model")
    at.json("push", "skill", "--to", "hf:me/vectors")
    with open_session(str(world / "registry.db"), world / "store") as session:
        expected = load_direction(session.inputs, session.inputs.reference("run:vector", "skill"), 1)
    there = elsewhere()
    there.json(*fetch(there, "hf:me/model")["words"][:-1], "reference")
    words = [word if word != "MODEL" else "reference" for word in fetch(there, "hf:me/vectors")["words"]]
    rows = there.json(*words, "--name", "theirs")
    assert [(row["source"], row["positions"]) for row in rows] == [("contrastive:white_elo", "dots")] * 2
    with opened(there.folder) as session:
        mine = load_direction(session.inputs, session.inputs.reference("run:vector", "theirs"), 1)
    assert expected.high is not None
    np.testing.assert_array_equal(mine.vector, expected.vector)
    np.testing.assert_array_equal(mine.high, expected.high)
    assert mine.detail["games_high"] == expected.detail["games_high"]


@pytest.mark.slow
def test_saes_come_back_with_equal_latents(hub: FakeHub, at: Here, elsewhere: Any, tmp_path: Path) -> None:
    settings = json.loads((GOLDEN_SAES / "saelens-standard" / "cfg.json").read_text())
    settings["metadata"]["output_path"] = "/home/ann/secret-project/out"
    folder = Path(shutil.copytree(GOLDEN_SAES / "saelens-standard", tmp_path / "sae"))
    (folder / "cfg.json").write_text(json.dumps(settings))
    at.json("push", "reference", "--to", "hf:me/model")
    at.json("import", "sae", folder, "--checkpoint", "reference", "--name", "sae")
    at.json("push", "sae", "--to", "hf:me/saes")
    files = hub.repositories["model", "me/saes"].files
    assert "secret-project" not in "".join(files[name].decode() for name in files if name.endswith((".json", ".md")))
    with open_session(os.environ["CHESSREG_REGISTRY"], Path(os.environ["CHESSREG_STORE"])) as session:
        expected = session.sae("sae")
    there = elsewhere()
    there.json(*fetch(there, "hf:me/model")["words"][:-1], "reference")
    words = [word if word != "MODEL" else "reference" for word in fetch(there, "hf:me/saes")["words"]]
    there.json(*words, "--name", "theirs")
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(2))
    with opened(there.folder) as session:
        assert torch.equal(session.sae("theirs").encode(x), expected.encode(x))


# -- pushing ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_pushing_again_makes_no_commit(hub: FakeHub, at: Here) -> None:
    first = at.json("push", "reference", "--to", "hf:me/again")
    commits = len(hub.repositories["model", "me/again"].commits)
    assert at("push", "reference", "--to", "hf:me/again") == 0
    assert "nothing was committed" in at.err
    assert len(hub.repositories["model", "me/again"].commits) == commits
    hub.repositories["model", "me/again"].commit({"README.md": b"edited"})
    third = at.json("push", "reference", "--to", "hf:me/again")
    assert third["changed"] == ["README.md"]
    assert third["commit"] != first["commit"]


def test_a_dry_run_sends_nothing(hub: FakeHub, at: Here) -> None:
    assert at("push", "reference", "--to", "hf:me/dry", "--dry-run") == 0
    assert "model.safetensors" in at.out
    assert "# reference" in at.out
    assert not hub.requests
    assert not list((Path(os.environ["CHESSREG_STORE"]) / "tmp").glob("*push*"))
    assert at("push", "reference", "--to", str(at.folder / "place"), "--dry-run") == 0
    assert not (at.folder / "place").exists()


@pytest.mark.parametrize(
    ("token", "words", "message"),
    quick_first(4, [
        (None, ("reference", "hf:me/x"), "no token for"),
        ("writer", ("reference", "hf:me"), "'hf:me' is not an address of the hub"),
        ("writer", ("nothing", "hf:me/x"), "'nothing' is not a checkpoint, dataset, probe, vector or SAE run"),
        ("expired", ("reference", "hf:me/x"), "does not accept the token"),
        ("stranger", ("reference", "hf:me/x"), "the token has no right to do this (You don't have the rights"),
        ("reader", ("reference", "hf:me/there"), "no right to do this (You need write access)"),
        ("writer", ("reference", "hf:me/data"), "hf:me/data is a dataset repository, but a checkpoint needs a model"),
        ("writer", ("reference", "hf:datasets/me/x"), "hf:datasets/me/x is a dataset repository"),
        ("writer", ("sample", "hf:models/me/x"), "is a model repository, but a dataset needs a dataset"),
        ("writer", ("reference", "hf:me/x@v1"), "has a revision or a path"),
        ("writer", ("reference", "hf:me/--x"), "hf:me/--x"),
        ("writer", ("reference-fit", "hf:me/x"), "'reference-fit' is not a checkpoint"),
    ]),
)  # fmt: skip
def test_a_push_that_cannot_be_is_refused_in_one_line(
    at: Here, monkeypatch: pytest.MonkeyPatch, token: str | None, words: tuple[str, str], message: str
) -> None:
    with run_fake_hub(monkeypatch, token) as hub:
        hub.add("me/there", {})
        hub.add("me/data", {}, "dataset")
        assert at("push", words[0], "--to", words[1]) != 0
        assert message in at.err
        assert "Traceback" not in at.err
        assert len(at.err.strip().splitlines()) <= 2
        assert ("model", "me/x") not in hub.repositories
        assert [len(one.commits) for one in hub.repositories.values()] == [2, 2]


def test_an_upload_that_breaks_off_commits_nothing_and_continues(hub: FakeHub, at: Here) -> None:
    hub.fail["^/lfs/"] = 0
    assert at("push", "reference-board", "--to", "hf:me/broken") == 1
    assert "was interrupted, and nothing was committed" in at.err
    assert "run the same command again" in at.err
    assert len(hub.repositories["model", "me/broken"].commits) == 1
    hub.fail = {"^/api/models/me/broken/commit": 500}
    assert at("push", "reference-board", "--to", "hf:me/broken") == 1
    assert "answered 500" in at.err
    puts = sum(method == "PUT" for method, _ in hub.requests)
    hub.fail = {}
    at.json("push", "reference-board", "--to", "hf:me/broken")
    assert sum(method == "PUT" for method, _ in hub.requests) == puts, "files that arrived are not sent again"


@pytest.mark.slow
def test_an_upload_by_xet_has_the_files_of_one_by_http(at: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hf_xet", reason="hf_xet is not installed on this platform")
    with run_fake_hub(monkeypatch, use_xet=True) as hub:
        hub.has_xet = True
        at.json("push", "reference-board", "--to", "hf:me/xet")
        assert hub.xet_shards
        assert not hub.objects
        by_xet = hub.repositories["model", "me/xet"].files
    with run_fake_hub(monkeypatch) as hub:
        at.json("push", "reference-board", "--to", "hf:me/xet")
        by_http = hub.repositories["model", "me/xet"].files
    large = {name: hashlib.sha256(by_http[name]).hexdigest().encode() for name in by_http if name.endswith("tensors")}
    assert large
    assert {**by_http, **large} == by_xet


@pytest.mark.slow
def test_a_hub_without_xet_is_one_line(at: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:  # the library's error, which it raises after repeating the request for a minute
        raise ConnectionError("Network error: HTTP status client error (404 Not Found), domain: …/xet-write-token/main")

    monkeypatch.setattr(huggingface_hub._commit_api, "_upload_xet_files", refuse)
    monkeypatch.setattr(huggingface_hub._commit_api, "is_xet_available", lambda: True)
    with run_fake_hub(monkeypatch, use_xet=True) as hub:
        assert at("push", "reference-board", "--to", "hf:me/xet") == 1
        assert at.err.startswith(f"error: cannot write to hf:me/xet: {hub.url} has no Xet storage")
        assert "hint: HF_HUB_DISABLE_XET=1 uploads by HTTP: run the same command again with it" in at.err
        assert len(hub.repositories["model", "me/xet"].commits) == 1


def test_a_hub_that_is_away_is_one_line(at: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_fake_hub(monkeypatch):
        pass
    for words in (("push", "reference", "--to", "hf:me/x"), ("fetch", "hf:me/x")):
        assert at(*words) == 1
        assert "does not answer" in at.err
        assert "check the network" in at.err
    monkeypatch.setenv("HF_ENDPOINT", "ftp://here")
    assert at("fetch", "hf:me/x") == 4
    assert "is not a URL" in at.err


def test_cards_have_no_folder_host_or_secret(at: Here, hub: FakeHub, world: Path) -> None:
    with open_session(str(world / "registry.db"), world / "store") as session:
        with session.database.read() as sql:
            host = sql.scalars(select(tables.Machine.host)).first()
        text = f"chessreg run /home/ann/k.py --cache mine@{host} --note hf_{'a' * 34} ~/x/y.pgn ../z/w.csv"
        assert hide_private_text(session, text) == "chessreg run k.py --cache mine --note *** y.pgn w.csv"
    for name in ("reference", "sample", "reference-board", "skill"):
        made = at.json("push", name, "--to", "hf:me/x", "--dry-run")
        assert str(world) not in made["card"]
        assert f"@{host}" not in made["card"]


# -- fetching --------------------------------------------------------------------------------------------------------

SCHOLARS = '[Result "1-0"]\n\n1. e4 e5 2. Qh5 Nc6 3. Bc4 Nf6 4. Qxf7# 1-0\n\n'


def test_files_are_found_by_kind_pattern_and_revision(hub: FakeHub, at: Here) -> None:
    made = hub.add("me/mixed", {"a/one.pgn": SCHOLARS.encode(), "notes.txt": b"x", "b/two.pgn": SCHOLARS.encode()})
    first = made.commits[-1][0]
    made.commit({"a/one.pgn": SCHOLARS.replace("e5", "e6").encode()})
    assert fetch(at, "hf:me/mixed")["files"] == ["a/one.pgn", "b/two.pgn"]
    assert fetch(at, "hf:me/mixed/a")["files"] == fetch(at, "hf:me/mixed/*one*")["files"] == ["a/one.pgn"]
    old = fetch(at, f"hf:me/mixed@{first}/a/one.pgn")
    assert old["commit"] == first
    assert (Path(old["folder"]) / "a/one.pgn").read_text() == SCHOLARS
    assert at.json("fetch", "hf:me/mixed", "--file", "b", "--revision", first)["files"] == ["b/two.pgn"]
    assert at("fetch", "hf:me/mixed") == 0
    assert at.out.startswith("2 files of games: chessreg dataset add ")
    assert at("fetch", "hf:me/mixed@v9") == 3
    assert "no revision 'v9'" in at.err
    assert at("fetch", "hf:me/mixed/c") == 3
    assert "it has a/one.pgn, notes.txt, b/two.pgn" in at.err
    assert at("fetch", "hf:me/none") == 3
    assert "does not exist, or this token cannot read it" in at.err


def test_saes_of_both_layouts_are_found(hub: FakeHub, at: Here) -> None:
    files = {
        f"{name}/{path.name}": path.read_bytes()
        for name in ("saelens-topk", "dictionary-AutoEncoder")
        for path in (GOLDEN_SAES / name).iterdir()
        if path.name != "expected.npz"
    }
    hub.add("me/saes", files)
    report = at.json("fetch", "hf:me/saes")
    assert [content["what"] for content in report["contents"]] == ["a SAE", "a SAE"]
    assert all(content["command"].endswith("--checkpoint MODEL") for content in report["contents"])


def test_a_repository_with_several_models_asks_for_one(hub: FakeHub, at: Here) -> None:
    hub.add("me/many", {f"run-{n}/ckpt.pt": b"x" for n in range(48)})
    assert at("fetch", "hf:me/many") == 4
    assert "hf:me/many has 48 models: run-0/ckpt.pt, run-1/ckpt.pt" in at.err
    assert "name one, such as hf:me/many/run-0/ckpt.pt" in at.err
    assert not any("resolve" in path for _, path in hub.requests)


def test_a_repository_of_ten_thousand_files_is_listed_and_refused(hub: FakeHub, at: Here) -> None:
    hub.add("me/shards", {f"games/{n}.pgn": SCHOLARS.encode() for n in range(10_000)})
    assert at("fetch", "hf:me/shards") == 4
    assert "10,000 files of hf:me/shards match, more than 1,000" in at.err
    assert not any("resolve" in path for _, path in hub.requests)
    assert fetch(at, "hf:me/shards/games/77.pgn")["files"] == ["games/77.pgn"]


@pytest.mark.parametrize(
    "name", ["../evil.pgn", "/etc/evil.pgn", "a/../../evil.pgn", "a//b.pgn", "a\\b.pgn", "a\x1b[2J.pgn", "a\u202eb.pgn",
             f"{'n' * 300}.pgn", "./a.pgn"]
)  # fmt: skip
def test_an_unsafe_file_name_is_refused(hub: FakeHub, at: Here, world: Path, name: str) -> None:
    hub.add("me/evil", {name: SCHOLARS.encode(), "good.pgn": SCHOLARS.encode()})
    before = sorted(world.rglob("*.pgn"))
    assert at("fetch", "hf:me/evil") == 4
    assert "unsafe name" in at.err
    assert "\x1b" not in at.err
    assert sorted(world.rglob("*.pgn")) == before
    assert fetch(at, "hf:me/evil/good.pgn")["files"] == ["good.pgn"]


def test_unicode_names_are_kept(hub: FakeHub, at: Here) -> None:
    hub.add("me/unicode", {"партии/à b♞.pgn": SCHOLARS.encode()})
    report = at.json("fetch", "hf:me/unicode")
    assert (Path(report["folder"]) / "партии/à b♞.pgn").read_text() == SCHOLARS
    hub.add("me/twice", {"é.pgn": SCHOLARS.encode(), "e\u0301.pgn": SCHOLARS.encode()})
    assert at("fetch", "hf:me/twice") == 4
    assert "two files of one name" in at.err


def test_a_commit_that_is_a_path_is_refused(hub: FakeHub, at: Here) -> None:
    made = hub.add("me/evil", {"a.pgn": SCHOLARS.encode()})
    made.commits[-1] = ("../../../../tmp/evil", made.files)
    assert at("fetch", "hf:me/evil") == 1
    assert "states the commit" in at.err


def test_a_huge_file_is_refused_before_the_download(hub: FakeHub, at: Here) -> None:
    made = hub.add("me/huge", {"model.pt": b"small"})
    made.listed_sizes["model.pt"] = 10**15
    assert at("fetch", "hf:me/huge") == 4
    assert "1,000,000,000,000,000 bytes, but" in at.err
    assert not any("resolve" in path for _, path in hub.requests)
    made.listed_sizes["model.pt"] = 3
    assert at("fetch", "hf:me/huge") == 4
    assert "more than its 3 bytes" in at.err


def test_a_malicious_pickle_is_named_and_not_run(hub: FakeHub, at: Here, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path}/owned",)

    hub.add("me/evil", {"model.pt": pickle.dumps(Evil())})
    assert at("fetch", "hf:me/evil") == 0
    assert at.out.startswith("not importable: ")
    assert "model.pt is refused: loading it would execute code" in at.out
    assert not (tmp_path / "owned").exists()


def test_a_download_that_breaks_off_resumes_and_damage_is_found(hub: FakeHub, at: Here) -> None:
    big = os.urandom(1 << 20)
    made = hub.add("me/big", {"model.pt": big, "vocab.json": b"{}"})
    hub.break_at = 700_000
    assert at("fetch", "hf:me/big/*") == 1
    assert "broke" in at.err
    hub.break_at, sent = None, len(hub.requests)
    report = at.json("fetch", "hf:me/big/*")
    assert (Path(report["folder"]) / "model.pt").read_bytes() == big
    assert any(path.startswith("/lfs/") for _, path in hub.requests[sent:])
    (Path(report["folder"]) / "vocab.json").write_text("[]")
    assert at("fetch", "hf:me/big/*") == 4
    assert "is damaged" in at.err
    assert at("fetch", "hf:me/big/*") == 0
    assert made.files["vocab.json"] == (Path(report["folder"]) / "vocab.json").read_bytes()


def test_parquet_files_of_the_hub_are_added_as_the_dataset_that_they_are_on_disk(
    hub: FakeHub, here: Here, tmp_path: Path
) -> None:
    files = {f"data/{name}.parquet": tmp_path / f"{name}.parquet" for name in ("b", "a")}
    for number, path in enumerate(files.values()):
        pq.write_table(pa.table({"movetext": ["1. e4 e5", "1. d4"], "WhiteElo": [1500 + number, None]}), path)
    content = {key: path.read_bytes() for key, path in files.items()}
    hub.add("me/games", {**content, "data/notes.txt": b"x"}, kind="dataset", private=True)
    remote._open_place.cache_clear()
    assert here("init") == 0
    made = here.json("dataset", "add", "hf:datasets/me/games/data/*.parquet", "--name", "far")
    assert made["source"] == "a.parquet, b.parquet"
    assert here.json("dataset", "add", *sorted(files.values()))["id"] == made["id"]
    assert here("dataset", "add", "hf:datasets/me/other/*.parquet") != 0
    assert here.err.startswith("error: ")
    storage = [token for path, token in hub.authorized if path.startswith("/lfs/")]
    assert set(storage) == {None}


def test_the_token_goes_to_the_hub_only(hub: FakeHub, at: Here) -> None:
    hub.add("me/private", {"model.safetensors": b"x" * 100, "config.json": b"{}"}, private=True)
    at.json("fetch", "hf:me/private/*")
    storage = [token for path, token in hub.authorized if path.startswith("/lfs/")]
    assert storage == [None]
    assert all(token == "Bearer writer" for path, token in hub.authorized if "/resolve/" in path)


def test_a_forged_record_in_a_repository_is_not_believed(hub: FakeHub, at: Here, world: Path) -> None:
    forged = json.dumps({"repository": "hf:deepmind/x", "commit": "0" * 40, "url": "https://huggingface.co"}).encode()
    hub.add("me/forger", {"sub/a.pgn": SCHOLARS.encode(), "sub.json": forged})
    report = at.json("fetch", "hf:me/forger/*")
    record = read_fetch_record(world / "store" / "downloads", Path(report["folder"]) / "sub" / "a.pgn")
    assert record is not None
    assert (record["repository"], record["commit"]) == ("hf:me/forger", report["commit"])
    assert read_fetch_record(world / "store" / "downloads", Path("/etc/passwd")) is None


def test_addresses_are_read_as_hugging_face_writes_them() -> None:
    parse = hub_repository.HubAddress.parse
    assert parse("hf://datasets/a/b@refs/pr/1/x/y.pgn") == hub_repository.HubAddress(
        "a/b", "dataset", "refs/pr/1", "x/y.pgn"
    )
    assert parse("hf:a/b@feature%2Fx") == hub_repository.HubAddress("a/b", None, "feature/x")
