"""Perplexity and legality of games that are read once: against plain sums over the logits of one game at a time."""

from __future__ import annotations

import math
from typing import Any

import chess
import numpy as np
import pytest
import torch

from chessreg.encodings.uci_square import davis
from chessreg.entities import checkpoint
from chessreg.entities.adding import add_dataset
from chessreg.entities.dataset import split_dataset
from chessreg.errors import BadInputError, DivergedError
from chessreg.experiments import token_legality
from chessreg.experiments.perplexity import PerplexitySpec
from chessreg.experiments.settings.games import GameBatches
from chessreg.experiments.token_legality import TokenLegalitySpec, find_turns, predict_tokens
from chessreg.games.boards.moves import pack_moves, unpack_moves
from chessreg.models.adapters.fen_encoder import FenConfig, FenEncoder
from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint
from chessreg.models.decoding.next_tokens import iterate_next_token_logprobs
from chessreg.models.language_model import LanguageModel
from chessreg.registry import tables
from chessreg.runs.kind import find_kind
from chessreg.runs.resolve import replace_names
from chessreg.session import open_session
from tests.experiments.test_moves_of_encodings import uci_model
from tests.quick import quick_first
from tests.specs import train_spec

GAMES = 6
PROMOTES = "e2e4 d7d5 e4d5 e7e6 d5e6 d8g5 e6e7 g5f6 e7f8q e8f8"


def register(session: Any, model: LanguageModel, name: str) -> None:
    with session.store.stage("checkpoint") as folder:
        save_checkpoint(model.network, folder, model.info)
        artifact = checkpoint.publish_checkpoint(session.store, folder, None)
    with session.database.write() as sql:
        columns = checkpoint.build_checkpoint_row(model.info, artifact.digest, training_datasets=None)
        checkpoint.record_checkpoint(sql, artifact, columns, name)


@pytest.fixture(scope="module")
def session(world: Any, bigram: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The world's registry with models that write UCI squares (of 512 tokens, and of LCB's vocabulary), PGN of few
    characters, and actions; and a game with a promotion."""
    short = bigram(block_size=120)
    fen = FenEncoder(FenConfig(1, 2, 32)).make_untrained(1)
    with open_session(str(world / "registry.db"), world / "store") as opened:
        register(opened, uci_model(bigram), "uci")
        register(opened, bigram(name="uci-square-77"), "lcb")
        register(opened, short, "pgn")
        register(opened, LanguageModel(fen, CheckpointInfo.from_network(fen, "fen-77")), "fen")
        path = tmp_path_factory.mktemp("promotes") / "promotes.pgn"
        board = chess.Board()
        path.write_text(
            f'[Event "one"]\n\n{board.variation_san([chess.Move.from_uci(m) for m in PROMOTES.split()])} *\n'
        )
        add_dataset(opened.database, opened.store, [path], name="promotes")
        yield opened


def rows_of(session: Any, run_id: Any, table: Any) -> list[Any]:
    with session.database.read() as sql:
        found = sql.query(table).filter_by(run_id=run_id).all()
        sql.expunge_all()
    return found


def texts(session: Any, name: str) -> tuple[LanguageModel, list[np.ndarray], list[list[chess.Move]]]:
    """A model, the tokens of its first test games, and their moves."""
    model = session.model(name)
    games, part = session.inputs.dataset(session.inputs.reference("dataset", "sample:test"))
    places = games.rows(part)[:GAMES]
    tokens = model.encoding.games(games, places)
    return (
        model,
        [tokens.item(i).astype(np.int64) for i in range(GAMES)],
        [unpack_moves(p) for p in games.moves(places)],
    )


def plain_nll(model: LanguageModel, ids: np.ndarray, masked: Any = ()) -> float:
    logits = model.logits(torch.from_numpy(ids[:-1])[None])[0].double()
    logits[:, list(masked)] = -torch.inf
    return -float(logits.log_softmax(-1)[torch.arange(len(ids) - 1), torch.from_numpy(ids[1:])].sum())


@pytest.mark.parametrize("end_token", quick_first(1, ["exclude", "include"]))
@pytest.mark.parametrize("name", ["uci", "lcb"])
def test_perplexity_is_that_of_one_game_at_a_time(session: Any, name: str, end_token: Any) -> None:
    """Davis predicts the next game's `<s>`, LCB its own `</s>`; canonical perplexity counts it as one ply more."""
    spec = PerplexitySpec(checkpoint=name, dataset="sample:test", games=GAMES, end_token=end_token)
    report = session.run(spec, GameBatches(batch_games=2, threads=1))
    model, ids, moves = texts(session, name)
    if name == "lcb":
        assert all(one[-1] == 2 for one in ids)
        ids = ids if end_token == "include" else [one[:-1] for one in ids]
    elif end_token == "include":
        ids = [np.append(one, 1) for one in ids]
    rows = sorted(rows_of(session, report.run_id, tables.Prediction), key=lambda row: row.unit)
    wanted = [plain_nll(model, one, range(3, 9) if name == "lcb" else ()) for one in ids]
    assert [row.value for row in rows] == pytest.approx(wanted, rel=1e-4)
    assert [row.detail["tokens"] for row in rows] == [len(one) - 1 for one in ids]
    plies = [len(own) + (end_token == "include") for own in moves]
    assert [row.detail["plies"] for row in rows] == plies
    (line,) = session.query("perplexity", run=report.run_id.hex).rows
    assert line["ppl_token"] == pytest.approx(math.exp(sum(wanted) / sum(len(one) - 1 for one in ids)), rel=1e-4)
    assert line["ppl_ply"] == pytest.approx(math.exp(sum(wanted) / sum(plies)), rel=1e-4)
    assert line["ppl_ply_low"] <= line["ppl_ply"] <= line["ppl_ply_high"]
    assert (line["encoding"], line["end_token"], line["n_games"], line["too_long"]) == (
        model.encoding.name, end_token, GAMES, 0
    )  # fmt: skip


def test_a_game_beyond_the_context_is_counted_and_left_out(session: Any) -> None:
    spec = PerplexitySpec(checkpoint="pgn", dataset="sample:test", games=GAMES)
    report = session.run(spec, GameBatches(threads=1))
    model, ids, _ = texts(session, "pgn")
    fits = [len(one) - 1 <= model.block_size for one in ids]
    rows = sorted(rows_of(session, report.run_id, tables.Prediction), key=lambda row: row.unit)
    assert [row.value is not None for row in rows] == fits
    (line,) = session.query("perplexity", run=report.run_id.hex).rows
    assert (line["n_games"], line["too_long"]) == (sum(fits), GAMES - sum(fits))
    assert (line["ppl_ply"] is None) == (not any(fits))


def test_a_model_of_positions_is_asked_for_every_move(session: Any) -> None:
    spec = PerplexitySpec(checkpoint="fen", dataset="sample:test", games=2)
    report = session.run(spec, GameBatches(threads=1))
    model, _, moves = texts(session, "fen")
    for row in rows_of(session, report.run_id, tables.Prediction):
        board, total = chess.Board(), 0.0
        for move in moves[row.unit]:
            (logits,) = model.logits(torch.tensor([model.encoding.prompt(board)]))[0].double()
            total -= float(logits.log_softmax(-1)[model.encoding.answer(board, move)[0]])
            board.push(move)
        assert row.value == pytest.approx(total, rel=1e-5)
    with pytest.raises(BadInputError, match="does not predict the end"):
        session.run(spec.model_copy(update={"end_token": "include"}))
    with pytest.raises(BadInputError, match="chessreg run legality"):
        session.run(TokenLegalitySpec(checkpoint="fen", dataset="sample:test"))


def test_games_that_were_trained_on_are_refused(session: Any) -> None:
    settings = {"n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 64, "batch_tokens": 64, "steps": 1}
    session.run(
        train_spec(
            architecture="gpt2", datasets=("sample:fit",), encoding="uci-square-72", packing="games", **settings
        ),
        name="seen",
    )
    for spec in (PerplexitySpec, TokenLegalitySpec):
        with pytest.raises(BadInputError, match="made from"):
            session.run(spec(checkpoint="seen", dataset="sample:fit", games=2))


def test_logits_that_are_no_numbers_are_refused(session: Any) -> None:
    model = session.model("uci")
    with torch.no_grad():
        model.network.wte.weight[0] = torch.nan
    with pytest.raises(DivergedError, match="NaN"):
        list(iterate_next_token_logprobs(model, [np.array([1, 16])]))


def test_legality_by_phase_is_what_python_chess_says(session: Any) -> None:
    spec = TokenLegalitySpec(checkpoint="uci", dataset="sample:test", games=GAMES)
    report = session.run(spec, GameBatches(batch_games=4, threads=1))
    model, ids, moves = texts(session, "uci")
    strict, loose, total = np.zeros(6, int), np.zeros(6, int), np.zeros(6, int)
    mass = np.zeros(6)
    for own, played in zip(ids, moves, strict=True):
        probs = model.logits(torch.from_numpy(own)[None])[0].double().softmax(-1).numpy()
        board, place, before = chess.Board(), 0, 5
        for move in played:
            legal = list(board.legal_moves)
            origins, targets = {m.from_square for m in legal}, {m.to_square for m in legal}
            onward = {m.to_square for m in legal if m.from_square == move.from_square}
            looks = [(before, origins, origins), (2 * (not board.turn), onward, targets)]
            before = looks[1][0] + 1
            if move.promotion:
                looks.append((before, {64, 65, 66, 67}, set(range(-4, 68))))  # q, r, b, n; anything
                before = 4
            for phase, good, any_good in looks:
                square = int(probs[place].argmax()) - 4
                total[phase] += 1
                strict[phase] += square in good
                loose[phase] += square in any_good
                mass[phase] += probs[place][[4 + s for s in good]].sum()
                place += 1
            board.push(move)
    scores = rows_of(session, report.run_id, tables.Score)
    for phase, name in enumerate(davis.phases):
        mine = [row for row in scores if row.split == name]
        assert sum(row.n for row in mine) == total[phase]
        assert sum(row.correct for row in mine) == strict[phase]
        assert sum(row.detail["loose"] for row in mine) == loose[phase]
        assert sum(row.detail["mass"] for row in mine) == pytest.approx(mass[phase], rel=1e-3)
    errors = rows_of(session, report.run_id, tables.Trial)
    assert len(errors) == (total - strict).sum()
    table = session.query("legal moves by phase", run=report.run_id.hex).rows
    assert [line["phase"] for line in table] == ["all", *[davis.phases[p] for p in np.flatnonzero(total)]]
    assert table[0]["strict"] == pytest.approx(100 * strict.sum() / total.sum())
    assert table[0]["loose"] == pytest.approx(100 * loose.sum() / total.sum())
    assert table[0]["mass"] == pytest.approx(100 * mass.sum() / total.sum(), rel=1e-3)
    assert 0 < table[0]["strict"] < table[0]["loose"] < 100
    frames = find_kind("token-legality").board_views({"run_id": report.run_id, "unit": 0}, session.inputs)
    assert len(frames) == sum(row.unit == 0 for row in errors)
    assert all("illegal" in frame.caption[0] and frame.marks for frame in frames)


def test_a_part_with_a_second_name_is_not_counted_twice(session: Any) -> None:
    report = session.run(PerplexitySpec(checkpoint="uci", dataset="sample:test", games=2), GameBatches(threads=1))
    split_dataset(session.database, session.store, "sample", "again=0.6,anew=0.4", seed=0)  # the bounds of fit and test
    (line,) = session.query("perplexity", run=report.run_id.hex).rows
    assert line["dataset"] == "sample:test"


def test_the_shortest_games_and_pgn_characters(session: Any) -> None:
    spec = TokenLegalitySpec(checkpoint="pgn", dataset="sample", games=3, shortest=True)
    report = session.run(spec, GameBatches(threads=1))
    games, _ = session.inputs.dataset(session.inputs.reference("dataset", "sample"))
    plies = games.table(["plies"]).column("plies").to_numpy()
    scores = rows_of(session, report.run_id, tables.Score)
    assert sorted(plies[[row.item for row in scores]])[-1] <= sorted(plies)[2]
    assert {row.split for row in scores} == {"white", "black"}
    assert all(row.detail["loose"] is None for row in scores)
    (everything, *_) = session.query("legal moves by phase", run=report.run_id.hex).rows
    assert (everything["loose"], everything["games_of"]) == (None, "the shortest")


def test_the_shortest_games_by_tokens_count_promotions(session: Any) -> None:
    spec = TokenLegalitySpec(checkpoint="uci", dataset="sample", games=30, shortest=True, shortest_by="tokens")
    resolved = replace_names(spec, session.inputs)
    games, places = token_legality.select_scored_games(resolved, session.inputs)
    every = token_legality.select_scored_games(resolved.model_copy(update={"games": games.total}), session.inputs)[1]
    encoding = session.inputs.encoding(resolved.checkpoint)
    length = {int(place): len(encoding.games(games, np.array([place])).ids) for place in every}
    assert [length[int(place)] for place in every] == sorted(length.values())
    assert places.tolist() == every[:30].tolist()
    plies = {
        int(p): int(n) for p, n in zip(every, games.table(["plies"]).column("plies").to_numpy()[every], strict=True)
    }
    assert any(length[p] != 1 + 2 * plies[p] for p in plies)  # some game has a promotion


def test_a_promotion_is_due_and_what_comes_after_it_is_counted_apart(session: Any) -> None:
    """Where a promotion is due the loose rule takes everything, the strict one its four letters."""
    board = chess.Board()
    for uci in PROMOTES.split():
        board.push_uci(uci)
    tokens = davis.encode_packed([pack_moves(board.move_stack)])
    ids = tokens.item(0)
    place = ids.tolist().index(68) - 1  # the destination, after which the letter is due
    for predicted, legal in ((68, True), (71, True), (16, False)):
        logprobs = np.full((len(ids), 72), -9.0, np.float32)
        logprobs[:, predicted] = -0.1
        (due,) = [
            one
            for one in predict_tokens(davis, ids, find_turns(davis, tokens)[0], board.move_stack, logprobs)
            if one.place == place
        ]
        assert (due.strict, due.loose, due.phase, len(due.written_ids)) == (legal, True, 1, 2)
        assert due.mass == pytest.approx(4 * np.exp(-9) if not legal else 3 * np.exp(-9) + np.exp(-0.1), rel=1e-3)
    after = list(predict_tokens(davis, ids, find_turns(davis, tokens)[0], board.move_stack, logprobs))[-2:]
    assert [(one.phase, one.since_promotion) for one in after] == [(4, 1), (2, 2)]
    spec = TokenLegalitySpec(checkpoint="uci", dataset="promotes", near_promotion=1)
    report = session.run(spec, GameBatches(threads=1))
    scores = {row.split: row for row in rows_of(session, report.run_id, tables.Score)}
    assert (scores["promotion"].n, scores["promotion"].detail["near"]) == (1, 1)
    assert scores["black-origin"].detail["near"] == 0
