"""Datasets are registered whole or not at all, and recognised when they come a second time."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path
from typing import Any

import pytest
import zstandard
from sqlalchemy import func, select

from chessreg.entities.adding import AddedDataset, FileFilter, add_dataset
from chessreg.entities.dataset import Datasets, read_rejects, split_dataset, verify_dataset
from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.games.datasets.dataset import DatasetPart, Games
from chessreg.registry import names, tables
from chessreg.registry.database import Database
from chessreg.runs.inputs import Inputs
from store import Store, StoreError

OPENINGS = [
    "e4 e5",
    "d4 d5",
    "c4 c5",
    "Nf3 Nf6",
    "e4 c5",
    "d4 Nf6",
    "g3 g6",
    "b3 b6",
    "f4 f5",
    "e4 e6",
    "e4 c6",
    "d4 f5",
]


def pgn(number: int, site: str = "https://lichess.org/abcd", event: str = "Rated game", elo: str = "1500") -> str:
    words = OPENINGS[number % len(OPENINGS)].split() + ["a3", "a6", "h3", "h6"][: 2 + number // len(OPENINGS) % 2]
    moves = " ".join(f"{n // 2 + 1}. {word}" if n % 2 == 0 else word for n, word in enumerate(words))
    tags = f'[Event "{event}"]\n[Site "{site}"]\n[White "a"]\n[Black "b"]\n[Result "1-0"]\n[WhiteElo "{elo}"]\n'
    return f"{tags}\n{moves} 1-0\n\n"


@pytest.fixture
def place(tmp_path: Path) -> Any:
    with Database.open(tmp_path / "registry.db") as database:
        yield database, Store.create(tmp_path / "store")


@pytest.fixture
def games(tmp_path: Path) -> Path:
    path = tmp_path / "games.pgn"
    path.write_text("".join(pgn(n) for n in range(30)))
    return path


def counts(database: Database) -> dict[str, int]:
    """Rows of every table that a registration writes to."""
    kinds = (tables.Artifact, tables.ArtifactLocation, tables.Dataset, tables.Split, tables.Annotation)
    with database.read() as session:
        return {kind.__tablename__: session.scalar(select(func.count()).select_from(kind)) or 0 for kind in kinds}


def contents(store: Store) -> set[str]:
    """Every file of the store."""
    return {str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file()}


def test_a_dataset_is_bytes_rows_and_a_name(place: Any, games: Path) -> None:
    database, store = place
    seen: list[float] = []
    added = add_dataset(database, store, [games], name="mine", licence="CC0", on_progress=lambda f, t: seen.append(f))
    with database.read() as session:
        row = session.get_one(tables.Dataset, names.resolve_id(session, "dataset", "mine"))
        artifact = session.get_one(tables.Artifact, row.artifact)
        location = session.scalars(select(tables.ArtifactLocation)).one()
        assert session.get(tables.Machine, location.machine_id) is not None
    assert added == AddedDataset(row.id, row.artifact, True)
    assert (row.games, row.rejected, row.skipped, row.rating_scale, row.licence) == (30, 0, 0, "lichess", "CC0")
    assert row.report["sources"][0]["sha256"] == hashlib.sha256(games.read_bytes()).hexdigest()
    assert artifact.state is tables.ArtifactState.COMPLETE
    assert artifact.kind == "dataset"
    assert Path(location.uri) == store.path(row.artifact)
    assert len(Games(store.path(row.artifact))) == 30
    assert seen[-1] == 1.0
    assert not list(store.tmp.iterdir())


def test_the_same_bytes_are_recognised_under_any_file_name(place: Any, games: Path, tmp_path: Path) -> None:
    database, store = place
    first = add_dataset(database, store, [games], name="mine")
    before, there = counts(database), contents(store)
    copy = tmp_path / "other.pgn"
    copy.write_bytes(games.read_bytes())
    again = add_dataset(database, store, [copy])
    assert again == AddedDataset(first.id, first.artifact, False)
    assert counts(database) == before
    assert contents(store) == there
    add_dataset(database, store, [copy], name="newer")
    with database.read() as session:
        assert names.describe_names(session, "dataset", first.id) == "newer (also mine)"
        assert {names.resolve_id(session, "dataset", name) for name in ("newer", "mine")} == {first.id}


def test_other_filters_make_another_dataset(place: Any, games: Path) -> None:
    database, store = place
    whole = add_dataset(database, store, [games])
    long = add_dataset(database, store, [games], FileFilter(min_plies=5))
    assert long.id != whole.id
    with database.read() as session:
        row = session.get_one(tables.Dataset, long.id)
    assert 0 < row.games < 30
    assert row.games + row.skipped == 30


def test_games_of_other_datasets_are_left_out_counted_and_part_of_the_identity(
    place: Any, games: Path, tmp_path: Path
) -> None:
    database, store = place
    whole = add_dataset(database, store, [games], name="whole")
    kept = tmp_path / "few.pgn"
    kept.write_text("".join(pgn(number) for number in range(4)))
    few = add_dataset(database, store, [kept], name="few")
    rest = add_dataset(database, store, [games], FileFilter(exclude=["few"]), name="rest")
    assert len({whole.id, few.id, rest.id}) == 3
    assert add_dataset(database, store, [games], FileFilter(exclude=[few.id.hex, "few"])).id == rest.id
    with database.read() as session:
        rows = {name: session.get_one(tables.Dataset, added.id) for name, added in (("few", few), ("rest", rest))}
        assert rows["rest"].report["skipped"] == {"moves of a dataset that is left out": 30 - rows["rest"].games}
        assert rows["rest"].report["filters"] == {"min_plies": 0, "exclude": [f"dataset:{rows['few'].identity}"]}
    inputs = Inputs(database, store)
    hashes = {
        name: set(inputs.dataset(inputs.reference("dataset", name))[0].hashes.tolist())
        for name in ("whole", "few", "rest")
    }
    assert hashes["few"]
    assert hashes["rest"] == hashes["whole"] - hashes["few"]
    with pytest.raises(BadInputError, match="holds no legal game") as caught:
        add_dataset(database, store, [kept], FileFilter(exclude=["whole"]))
    assert caught.value.hint == "left out: 4 moves of a dataset that is left out"
    with pytest.raises(NotFoundError, match="nobody"):
        add_dataset(database, store, [games], FileFilter(exclude=["nobody"]))


def test_a_licence_that_its_column_cannot_hold_is_refused_before_anything_is_stored(place: Any, games: Path) -> None:
    database, store = place
    with pytest.raises(BadInputError, match=r"its licence cannot be .*shorten its 65 characters to 64"):
        add_dataset(database, store, [games], licence="x" * 65)
    assert not store.list()


def test_a_taken_name_is_refused_before_anything_is_stored(place: Any, games: Path, tmp_path: Path) -> None:
    database, store = place
    add_dataset(database, store, [games], name="mine")
    before, there = counts(database), contents(store)
    other = tmp_path / "other.pgn"
    other.write_text(pgn(0) + pgn(5))
    with pytest.raises(BadInputError, match="'mine' is taken"):
        add_dataset(database, store, [other], name="mine")
    with pytest.raises(BadInputError, match="cannot be a name"):
        add_dataset(database, store, [other], name="no/name")
    assert counts(database) == before
    assert contents(store) == there


@pytest.mark.parametrize(
    ("tags", "scale"),
    [
        ({"site": "https://lichess.org/x"}, "lichess"),
        ({"site": "?", "event": "chessreg generated"}, "stockfish"),
        ({"site": "Wijk aan Zee"}, None),
        ({"site": "?"}, None),
        ({"site": "https://lichess.org/x", "elo": "?"}, None),
    ],
)
def test_the_rating_scale_follows_from_the_tags(place: Any, tmp_path: Path, tags: Any, scale: str | None) -> None:
    database, store = place
    path = tmp_path / "g.pgn"
    path.write_text("".join(pgn(n, **tags) for n in range(5)))
    added = add_dataset(database, store, [path])
    with database.read() as session:
        assert session.get_one(tables.Dataset, added.id).rating_scale == scale


def test_mixed_sites_have_no_rating_scale_unless_it_is_said(place: Any, tmp_path: Path) -> None:
    database, store = place
    path = tmp_path / "g.pgn"
    path.write_text("".join(pgn(n, site="https://lichess.org/x" if n else "Linares") for n in range(9)))
    with database.read() as session:
        added = add_dataset(database, store, [path], FileFilter(min_plies=1))
        assert session.get_one(tables.Dataset, added.id).rating_scale is None
    said = add_dataset(database, store, [path], rating_scale="fide")
    with database.read() as session:
        assert session.get_one(tables.Dataset, said.id).rating_scale == "fide"


def test_rejected_games_stay_with_the_dataset(place: Any, tmp_path: Path) -> None:
    database, store = place
    path = tmp_path / "g.pgn"
    path.write_text(pgn(0) + pgn(1).replace("d5", "d9") + pgn(2))
    add_dataset(database, store, [path], name="some")
    (reject,) = read_rejects(database, store, "some")
    assert (reject["row"], reject["source"], reject["ply"]) == (1, "g.pgn", 1)
    assert "d9" in reject["reason"]


def test_a_file_name_with_a_tab_and_a_line_break_keeps_its_rejects_readable(place: Any, tmp_path: Path) -> None:
    database, store = place
    path = tmp_path / "my\tgames\n2.pgn"
    path.write_text(pgn(0) + pgn(1).replace("d5", "d9"))
    add_dataset(database, store, [path], name="some")
    (reject,) = read_rejects(database, store, "some")
    assert (reject["row"], reject["source"], reject["ply"]) == (1, "my games 2.pgn", 1)


def test_the_command_that_makes_a_dataset_names_its_files_and_filters(place: Any, games: Path, tmp_path: Path) -> None:
    database, store = place
    paths = [tmp_path / "one.pgn", tmp_path / "two b.pgn"]
    paths[0].write_text("".join(pgn(n) for n in range(24)))
    paths[1].write_text("".join(pgn(n) for n in range(24, 36)))
    add_dataset(database, store, [games], name="all")
    split_dataset(database, store, "all", "some=0.5", seed=1)
    torn = tmp_path / "torn.pgn.zst"
    torn.write_bytes(zstandard.compress("".join(pgn(n) for n in range(5000)).encode())[:-40])
    made = {"games": 4, "seed": 3, "levels": [0, 1], "nodes": 5, "max_plies": 12, "opening_plies": 4}
    made |= {"resign_share": 0.5, "engine": "stockfish", "version": "16", "sha256": "0" * 64, "ratings": "-"}
    for added, command in (
        (
            add_dataset(database, store, paths, FileFilter(min_plies=4, exclude=["all:some"])),
            "chessreg dataset add one.pgn 'two b.pgn' --min-plies 4 --exclude all:some",
        ),
        (add_dataset(database, store, [torn], FileFilter(salvage=True)), "chessreg dataset add torn.pgn.zst --salvage"),
        (
            add_dataset(database, store, paths[:1], extra={"generated": made}),
            "chessreg dataset generate --levels 0,1 --games 4 --search-nodes 5 --max-plies 12 --opening-plies 4 "
            "--resign-share 0.5 --seed 3",
        ),
    ):
        with database.read() as session:
            assert Datasets().describe_origin(session, session.get_one(tables.Dataset, added.id))[0] == command


@pytest.mark.parametrize("broken", ["missing", "empty", "not a pgn", "cut off"])
def test_a_bad_file_leaves_nothing(place: Any, games: Path, tmp_path: Path, broken: str) -> None:
    database, store = place
    path = tmp_path / ("bad.pgn.zst" if broken == "cut off" else "bad.pgn")
    if broken == "cut off":
        path.write_bytes(zstandard.compress(games.read_bytes())[:-20])
    elif broken != "missing":
        path.write_text("" if broken == "empty" else "Dear editor,\nI have no games for you.\n")
    before, there = counts(database), contents(store)
    with pytest.raises(NotFoundError if broken == "missing" else BadInputError):
        add_dataset(database, store, [path], name="bad")
    assert counts(database) == before
    assert contents(store) == there


def test_a_full_disk_leaves_nothing(place: Any, games: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, store = place
    before, there = counts(database), contents(store)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("chessreg.games.datasets.build.write_parquet", full)
        with pytest.raises((ChessregError, StoreError), match=r"no space|full"):
            add_dataset(database, store, [games], name="mine")
    with monkeypatch.context() as patch:
        patch.setattr("store.artifacts.sync_tree", full)
        with pytest.raises(StoreError, match="full"):
            add_dataset(database, store, [games], name="mine")
    assert counts(database) == before
    assert contents(store) == there
    assert add_dataset(database, store, [games], name="mine").is_new


def test_an_interrupt_leaves_nothing(place: Any, games: Path) -> None:
    database, store = place
    before, there = counts(database), contents(store)

    def interrupt(fraction: float, text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add_dataset(database, store, [games], name="mine", on_progress=interrupt)
    assert counts(database) == before
    assert contents(store) == there


def test_lost_bytes_are_added_again_under_the_same_id(place: Any, games: Path) -> None:
    import shutil

    database, store = place
    first = add_dataset(database, store, [games], name="mine")
    shutil.rmtree(store.path(first.artifact))
    again = add_dataset(database, store, [games])
    assert again.id == first.id
    assert store.verify(again.artifact).kind == "dataset"


# -- splits -----------------------------------------------------------------------------------------------------------


def test_no_game_and_no_move_list_is_in_two_parts(place: Any, games: Path) -> None:
    database, store = place
    added = add_dataset(database, store, [games], name="mine")
    split = split_dataset(database, store, "mine", "train=0.5,validation=0.2,test=0.3", seed=3)
    data = Games(store.path(added.artifact))
    inside = {part.name: set(data.rows(DatasetPart(part.seed, part.low, part.high)).tolist()) for part in split.parts}
    assert [part.games for part in split.parts] == [len(inside[part.name]) for part in split.parts]
    assert sorted(row for rows in inside.values() for row in rows) == list(range(30))
    lists = {name: {data.hashes[row] for row in rows} for name, rows in inside.items()}
    assert not lists["train"] & lists["test"]
    assert not lists["train"] & lists["validation"]
    assert [(o.games, o.move_lists) for o in split.overlaps] == [(0, 0)] * 3
    assert split.outside == 0
    assert split.created == 3


def test_splitting_again_changes_nothing_and_other_bounds_are_refused(place: Any, games: Path) -> None:
    database, store = place
    add_dataset(database, store, [games], name="mine")
    first = split_dataset(database, store, "mine", "train=0.5,test=0.5", seed=0)
    again = split_dataset(database, store, "mine", "train=0.5,test=0.5", seed=0)
    assert again.created == 0
    assert [p.games for p in again.parts] == [p.games for p in first.parts]
    for parts, seed in (("train=0.5,test=0.5", 1), ("train=0.4", 0), ("fresh=0.3,test=0.5", 0)):
        with pytest.raises(BadInputError, match="already"):
            split_dataset(database, store, "mine", parts, seed=seed)
    assert counts(database)["split"] == 2


def test_parts_of_another_seed_are_counted_against_the_old_ones(place: Any, games: Path) -> None:
    database, store = place
    added = add_dataset(database, store, [games], name="mine")
    split_dataset(database, store, "mine", "train=0.5,test=0.5", seed=0)
    other = split_dataset(database, store, "mine", "all=1", seed=1)
    hashes = Games(store.path(added.artifact)).hashes
    shared = {overlap.other: (overlap.games, overlap.move_lists) for overlap in other.overlaps}
    assert sum(games for games, _ in shared.values()) == 30
    assert sum(lists for _, lists in shared.values()) == len(set(hashes.tolist())) < 30


def test_bad_parts_are_refused(place: Any, games: Path) -> None:
    database, store = place
    add_dataset(database, store, [games], name="mine")
    for parts in ("train", "train=2", "a=0.6,b=0.6", "a=0.1,a=0.2"):
        with pytest.raises(BadInputError):
            split_dataset(database, store, "mine", parts, seed=0)
    assert counts(database)["split"] == 0


def test_verify_reads_every_byte_and_notes_when(place: Any, games: Path) -> None:
    database, store = place
    added = add_dataset(database, store, [games], name="mine")
    with database.read() as session:
        before = session.scalars(select(tables.ArtifactLocation.verified_at)).one()
    assert verify_dataset(database, store, "mine").problems == []
    with database.read() as session:
        assert session.scalars(select(tables.ArtifactLocation.verified_at)).one() > before
    path = store.path(added.artifact) / "games.parquet"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(bytes(damaged))
    with pytest.raises(StoreError, match=r"games\.parquet has changed"):
        verify_dataset(database, store, "mine")
