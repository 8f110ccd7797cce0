"""Twins: models of positions and of games that learn, and are asked, the same decisions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest
import torch

from chessreg.encodings import get_encoding
from chessreg.entities.adding import add_dataset
from chessreg.entities.dataset import split_dataset
from chessreg.errors import BadInputError
from chessreg.experiments.move_accuracy import MoveAccuracyOptions, MoveAccuracySpec, has_form
from chessreg.experiments.settings.corpora import TrainingData
from chessreg.experiments.settings.decisions import Decisions, load_decisions
from chessreg.experiments.train import TrainOptions, build_corpus, select_training_decisions
from chessreg.games.boards.moves import unpack_moves
from chessreg.models.branches import BranchCorpus
from chessreg.registry import tables
from chessreg.runs.kind import find_kind
from chessreg.runs.resolve import resolve_spec
from chessreg.session import Session, open_session
from tests.conftest import PLIES, write_games
from tests.specs import train_spec

SHAPE: dict[str, Any] = {"n_layer": 1, "n_head": 2, "n_embd": 16, "warmup_steps": 2, "steps": 12, "batch_moves": 24}
LEARN = {"datasets": ("decisions",), "source_games": "fit", "heldout": "decisions", "heldout_source_games": "test"}
TWINS: dict[str, dict[str, Any]] = {
    "bidirectional": {"architecture": "fen-encoder", "attention": "bidirectional"},
    "causal": {"architecture": "fen-encoder"},
    "games": {"architecture": "gpt2-best-moves", "block_size": 400},
}
HOW = TrainOptions(threads=1, log_steps=4, autocast=False)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with games in two datasets, decisions in both, and the three twins."""
    folder = tmp_path_factory.mktemp("twins")
    (folder / "decisions.csv").write_text("fen,best,played,game,ply\n")
    write_games(folder, "fit", range(12))
    write_games(folder, "test", range(12, 18))
    with open_session(str(folder / "registry.db"), folder / "store") as session:
        for name in ("fit", "test"):
            add_dataset(session.database, session.store, [folder / f"{name}.pgn"], name=name)
        add_dataset(session.database, session.store, [folder / "decisions.csv"], name="decisions")
        for name, settings in TWINS.items():
            session.run(train_spec(**SHAPE, **LEARN, **settings, heldout_moves=20, heldout_steps=12), HOW, name=name)
    return folder


@pytest.fixture
def session(root: Path) -> Iterator[Session]:
    with open_session(str(root / "registry.db"), root / "store") as opened:
        yield opened


def asked(session: Session, model: str, **settings: Any) -> list[tables.Prediction]:
    """The rows of a run that asks a model the decisions of the test games."""
    spec = MoveAccuracySpec(checkpoint=model, **{"dataset": "decisions", "source_games": "test", **settings})
    report = session.run(spec, MoveAccuracyOptions(threads=1, forward_positions=8))
    with session.database.read() as sql:
        found = sql.query(tables.Prediction).filter_by(run_id=report.run_id).order_by(tables.Prediction.item).all()
        sql.expunge_all()
    return found


def curve(session: Session, name: str) -> dict[str, float]:
    """The last value of each curve of a training."""
    with session.database.read() as sql:
        run = sql.query(tables.Checkpoint).filter_by(id=session.id("checkpoint", name)).one().run_id
        return {p.name: p.value for p in sql.query(tables.MetricPoint).filter_by(run_id=run, step=12)}


@pytest.mark.slow
def test_held_out_positions_that_are_drawn_are_of_more_games_and_do_not_go_by_the_file(session: Session) -> None:
    def held(**settings: Any) -> Any:
        spec = train_spec(**SHAPE, **LEARN, **TWINS["causal"], heldout_moves=12, **settings)
        read = session.inputs
        spec = resolve_spec(find_kind("train"), spec, read).spec
        return select_training_decisions(spec, spec.heldout, read, "heldout")

    first, drawn, again = held(), held(heldout_order="drawn"), held(heldout_order="drawn", seed=5)
    assert first.places.tolist() == sorted(first.places)[:12] == list(range(first.places[0], first.places[0] + 12))
    assert len(drawn) == 12
    assert len(set(drawn.game)) > len(set(first.game))
    assert drawn.places.tolist() == again.places.tolist()  # curves of two seeds compare
    every = held(heldout_order="drawn").positions
    backward = Decisions(every, drawn.places[::-1])
    order = Decisions(every, drawn.places)
    assert (
        backward.places[backward.draw_order("heldout")].tolist() == order.places[order.draw_order("heldout")].tolist()
    )


def test_twins_learn_and_are_asked_the_same_decisions(session: Session) -> None:
    rows = {name: asked(session, name) for name in TWINS}
    assert len({tuple((row.item, row.unit) for row in each) for each in rows.values()}) == 1
    assert [row.detail["ply"] for row in rows["games"]] == list(PLIES) * 6
    for name in TWINS:
        points = curve(session, name)
        assert points["tokens_seen"] == 4 * 12 * len(PLIES)  # three updates an epoch, four epochs
        held = rows[name][:20]
        assert points["heldout_loss"] == pytest.approx(np.mean([row.value for row in held]), abs=1e-4)
        assert points["heldout_accuracy"] == np.mean([row.detail["best"] for row in held])
        names = {"legal": "legal", "valid": "valid", "best_of_legal": "legal_best", "legal_mass": "mass"}
        for metric, column in names.items():
            assert points[f"heldout_{metric}"] == pytest.approx(np.mean([row.detail[column] for row in held]), abs=1e-5)


@pytest.mark.parametrize("name", ["bidirectional", "games"])
def test_a_verdict_is_that_of_forward_passes_of_its_own(session: Session, name: str) -> None:
    model, rows = session.model(name), asked(session, name)
    items, _ = session.inputs.items(session.inputs.reference("dataset", "decisions"))
    games, _ = session.inputs.dataset(session.inputs.reference("dataset", "test"))
    texts = dict(zip(games.table(["site"])["site"].to_pylist(), games.table(["text"])["text"].to_pylist(), strict=True))
    for row in rows[::7]:
        known = items.take([row.item], ["fen", "best", "game"]).to_pylist()[0]
        board, scored = chess.Board(known["fen"]), {}
        if name == "games":
            text = texts[f"https://lichess.org/{known['game']}"]
            sans = [word.split(".")[-1] for word in text[1:].split()][: row.detail["ply"]]
            prompt = list(model.encoding.prompt(sans))
        else:
            prompt = list(model.encoding.prompt(board))
        for move in board.legal_moves:
            answer = list(model.encoding.answer(board, move))
            logits = model.logits(torch.tensor([prompt + (answer[:-1] if name == "games" else [])]))[0]
            ours = torch.log_softmax(logits[-len(answer) :], -1)
            scored[move.uci()] = float(sum(line[token] for line, token in zip(ours, answer, strict=True)))
        assert row.value == pytest.approx(-scored[known["best"]], abs=1e-4)
        assert row.detail["mass"] == pytest.approx(np.exp(list(scored.values())).sum(), abs=1e-5)
        assert row.detail["chosen"] == max(scored, key=scored.__getitem__)
        assert row.detail["rank"] == 1 + sum(value > scored[known["best"]] for value in scored.values())
        assert (row.detail["legal"], row.detail["legal_moves"]) == (
            model.encoding.parse(row.text, board) is not None, len(scored)
        )  # fmt: skip


def test_a_later_character_changes_an_earlier_residual_only_without_a_mask(session: Session) -> None:
    """The last counter of the FEN changes; the residual of the first 70 characters is compared."""
    written = [get_encoding("fen-77").encode(f"{chess.STARTING_FEN[:-1]}{number}") for number in (1, 2)]
    tokens = torch.tensor(np.stack(written).astype(np.int64))
    for name, changes in (("bidirectional", True), ("causal", False)):
        model = session.model(name)
        residual = model.residuals(tokens, [0])[0]
        assert bool((residual[0, :70] != residual[1, :70]).any()) is changes
        assert bool((residual[0, -1] != residual[1, -1]).any())
        assert not torch.equal(*model.logits(tokens))  # the answer reads all characters either way


def test_the_differences_of_twins_are_paired_by_game(session: Session) -> None:
    rows = {name: asked(session, name) for name in TWINS}
    runs = [each[0].run_id.hex for each in rows.values()]
    found = {row["differs"]: row for row in session.query("mask ablation", run=runs).rows}
    assert set(found) == {
        "mask: bidirectional minus causal", "input: position minus game", "both: bidirectional position minus game"
    }  # fmt: skip
    mask = found["mask: bidirectional minus causal"]
    difference = np.mean([a.value - b.value for a, b in zip(rows["bidirectional"], rows["causal"], strict=True)])
    assert mask["nats"] == pytest.approx(difference, abs=1e-9)
    assert mask["nats_low"] <= mask["nats"] <= mask["nats_high"]
    tokens = {name: session.model(name).info.source["tokens_read"] for name in TWINS}
    assert tokens["bidirectional"] == tokens["causal"] == 78 * mask["learned"]
    assert mask["flops"] == 6 * 12 * 16**2 * tokens["causal"] + 6 * (2 * 16 + 16) * tokens["causal"]
    with session.database.write() as sql:
        causal = sql.get_one(tables.Checkpoint, session.id("checkpoint", "causal"))
        causal.tokens_seen, learned = None, causal.tokens_seen
    unknown = {row["differs"] for row in session.query("mask ablation", run=runs).rows}
    with session.database.write() as sql:
        sql.get_one(tables.Checkpoint, causal.id).tokens_seen = learned
    assert unknown == {
        "mask: bidirectional minus causal, training not known", "input: position minus game, training not known",
        "both: bidirectional position minus game",
    }  # fmt: skip
    both = found["input: position minus game"]
    assert (
        12 * 26 * 4 < tokens["games"] == pytest.approx(both["twin_flops"] / both["flops"] * tokens["causal"], rel=0.05)
    )
    ids = {session.id("checkpoint", name).hex: name for name in TWINS}
    assert (mask["n"], mask["n_games"], ids[str(mask["checkpoint_id"])]) == (30, 6, "bidirectional")
    table = {ids[str(row["checkpoint_id"])]: row for row in session.query("move accuracy by model", run=runs).rows}
    for name, row in table.items():
        assert row["legal_best"] == pytest.approx(100 * np.mean([r.detail["legal_best"] for r in rows[name]]))
        assert row["nats_token"] * sum(r.detail["tokens"] for r in rows[name]) == pytest.approx(
            30 * row["nats"], rel=1e-4
        )
    assert table["games"]["attention"] == table["causal"]["attention"] == "causal"
    assert table["bidirectional"]["attention"] == "bidirectional"


def test_positions_of_other_games_can_be_left_out(session: Session) -> None:
    """Every game's first decision is the initial position; some share their second."""
    everything = asked(session, "causal")
    unseen = asked(session, "causal", unseen_of="fit")
    items, _ = session.inputs.items(session.inputs.reference("dataset", "decisions"))
    table = items.table(["fen", "game"]).to_pylist()
    seen = {row["fen"].rsplit(" ", 2)[0] for row in table if row["game"] < "game0012"}
    left = [row.item for row in everything if table[row.item]["fen"].rsplit(" ", 2)[0] not in seen]
    assert [row.item for row in unseen] == left
    assert 0 < len(left) <= len(everything) - 6
    assert asked(session, "causal", positions=7)[-1].item == everything[6].item
    split_dataset(session.database, session.store, "decisions", "even=0.5,odd=0.5", seed=1)
    part = {row.item for row in asked(session, "causal", dataset="decisions:odd")}
    seldom = [row.item for row in asked(session, "causal", dataset="decisions:odd", unseen_of="fit")]
    assert seldom == [item for item in left if item in part]
    assert 0 < len(seldom) < len(part)
    with pytest.raises(BadInputError, match="--unseen-of contains every position"):
        asked(session, "causal", unseen_of="test")


def test_a_game_is_written_once_with_its_branches(session: Session) -> None:
    spec = train_spec(**SHAPE, **LEARN, **TWINS["games"])
    references = (session.inputs.reference("dataset", "decisions"),)
    resolved = spec.model_copy(update={"source_games": session.inputs.reference("dataset", "fit")})
    made = build_corpus(resolved, TrainingData(session.inputs, references))
    assert isinstance(made, BranchCorpus)
    assert (len(made.games), len(made.prefix_lengths)) == (12, 12 * len(PLIES))
    found = load_decisions(session.inputs, references[0], resolved.source_games, "datasets")
    pgn = get_encoding("pgn-char-32")
    prompts = sorted(pgn.decode(prompt) for prompt in found.encode_prompts(pgn) if prompt)
    starts = np.repeat(made.offsets[made.games], made.moves)
    assert prompts == sorted(
        pgn.decode(made.tokens[start : start + seen]) for start, seen in zip(starts, made.prefix_lengths, strict=True)
    )
    assert prompts[0] == ";1."
    answers = [pgn.decode(made.answers[a:b]) for a, b in zip(made.answer_begins, made.answer_ends, strict=True)]
    assert all(answer.endswith(" ") for answer in answers)


@pytest.mark.parametrize("name", ["pgn-char-32", "uci-square-72", "uci-square-77"])
def test_what_is_read_before_a_decision_is_the_prompt_of_the_moves_before_it(session: Session, name: str) -> None:
    written = get_encoding(name)
    references = [session.inputs.reference("dataset", each) for each in ("decisions", "test")]
    found = load_decisions(session.inputs, *references, "dataset")
    assert found.games is not None
    moves = dict(zip(found.game.tolist(), found.games.moves(found.game), strict=True))  # type: ignore[union-attr]
    for prompt, game, ply in zip(found.encode_prompts(written), found.game, found.ply, strict=True):  # type: ignore[arg-type]
        board = chess.Board()
        for move in unpack_moves(moves[int(game)])[: int(ply)]:
            board.push(move)
        assert prompt == tuple(written.prompt(board))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heldout_source_games": None}, "give --heldout-source-games"),
        ({"heldout_order": "drawn"}, "give --heldout-moves"),
        ({"block_size": 60}, "--block-size 60"),
        ({"source_games": "decisions"}, "games are needed"),
        ({"datasets": ("fit",)}, "has no best moves"),
        ({"packing": "games"}, "--packing belongs to --architecture gpt2, not to gpt2-best-moves"),
        ({"heldout": None}, "need held-out positions"),
        ({**TWINS["causal"], "game_loss": 0.5}, "--game-loss belongs to --architecture gpt2-best-moves"),
        ({**TWINS["causal"], "target": "played"}, "positions with best moves"),
        (
            {**TWINS["causal"], "source_games": None, "target": "played", "heldout_moves": 5},
            "positions with best moves",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(session: Session, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message) as caught:
        session.run(
            train_spec(**{**SHAPE, **LEARN, **(TWINS["games"] if "architecture" not in settings else {}), **settings}),
            HOW,
        )
    assert "\n" not in str(caught.value)


def test_a_model_of_games_needs_the_games_that_the_positions_are_of(session: Session, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="these games are unknown"):
        asked(session, "games", source_games=None)
    assert len(asked(session, "causal", source_games=None)) == 18 * len(PLIES)
    (tmp_path / "decisions.csv").write_text("fen,best,played,game,ply\n")
    write_games(tmp_path, "wrong", range(12, 14), shift=2)  # a ply that its side to move allows, of another position
    add_dataset(session.database, session.store, [tmp_path / "decisions.csv"], name="wrong")
    with pytest.raises(BadInputError, match="is not the position of its game after"):
        asked(session, "causal", dataset="wrong")
    (tmp_path / "other.csv").write_text(f"fen,best,game,ply\n{chess.STARTING_FEN},e2e4,unknown1,0\n")
    add_dataset(session.database, session.store, [tmp_path / "other.csv"], name="other")
    with pytest.raises(BadInputError, match="none of the positions occurs in these games"):
        asked(session, "causal", dataset="other")


def test_a_text_has_the_form_of_a_move_or_not() -> None:
    pgn, fen = get_encoding("pgn-char-32"), get_encoding("fen-77")
    for text, valid in (
        ("Nf3 ", True),
        ("exd8=Q+ ", True),
        ("O-O", True),
        ("Nf9 ", False),
        ("", False),
        ("e4 e5", False),
    ):
        assert has_form(pgn, tuple(pgn.encode(text).tolist()) if text else ()) is valid, text
    assert has_form(fen, (1967,))


def test_positions_without_best_moves_teach_and_ask_nothing(session: Session, tmp_path: Path) -> None:
    (tmp_path / "bare.csv").write_text(f"fen,game,ply\n{chess.STARTING_FEN},game0000,0\n")
    add_dataset(session.database, session.store, [tmp_path / "bare.csv"], name="bare")
    with pytest.raises(BadInputError, match="no position has a best move"):
        asked(session, "causal", dataset="bare", source_games=None)
    for settings in (TWINS["causal"], TWINS["games"]):
        with pytest.raises(BadInputError, match="no position has a best move"):
            session.run(train_spec(**{**SHAPE, **LEARN, **settings, "datasets": ("bare",), "heldout_moves": 0}), HOW)
