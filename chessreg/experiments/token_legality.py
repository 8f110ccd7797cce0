"""`token-legality`: whether the most probable next token is part of a legal move, at every token of given games."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import chess
import numpy as np
from pydantic import BaseModel, Field

from chessreg.encodings.uci_square import UciSquare
from chessreg.errors import BadInputError
from chessreg.experiments.settings import overlap
from chessreg.experiments.settings.games import GameBatches, GameSelection, extract_selection, select_games
from chessreg.experiments.settings.overlap import ALLOW_OVERLAP, AllowOverlap
from chessreg.games.boards.boardframe import Arrow, BoardFrame
from chessreg.games.boards.moves import unpack_moves
from chessreg.games.datasets.dataset import convert_column_to_numpy
from chessreg.registry import tables
from chessreg.runs.cost import count_reading_operations
from chessreg.runs.kind import Kind, RunEstimate
from chessreg.runs.spec import CheckpointRef

if TYPE_CHECKING:
    from chessreg.encodings import Encoding, Tokens
    from chessreg.games.boards.boardframe import Mark
    from chessreg.games.datasets.dataset import Games
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

EVERY_GAME = 1 << 62


class TokenLegalitySpec(GameSelection):
    checkpoint: CheckpointRef = Field(description="the model, of games")
    games: int = Field(1000, ge=1, description="games, the first in file order, or the shortest")
    shortest: bool = Field(False, description="use the shortest games instead")
    shortest_by: Literal["plies", "tokens"] = Field(
        "plies",
        description="length by which --shortest chooses; a promotion has one token more (Davis's code: tokens)",
    )
    near_promotion: int = Field(
        4, ge=1, description="count errors separately within this many tokens after a promotion"
    )
    mask_unused: bool = Field(
        True, description="give no probability to tokens that games are never written with (LCB's piece letters)"
    )
    allow_overlap: AllowOverlap = ALLOW_OVERLAP


class PhaseScore(BaseModel):
    """Columns of one phase of one game (split: the phase); `n` predictions, `correct` of them strictly legal."""

    phase: int = Field(description="the phase's number in the encoding, by the token that was read")
    loose: int | None = Field(None, description="predictions legal by Davis's rule; for UCI squares only")
    mass: float = Field(description="sum of the probabilities of strictly legal tokens")
    near: int = Field(description="predictions at most --near-promotion tokens after a promotion")
    near_correct: int = Field(description="number of strictly legal predictions among these")


class TokenError(BaseModel):
    """Columns of an illegal prediction (text: the predicted token)."""

    token: int = Field(description="its index in the game")
    phase: str = Field(description="phase of the token before it")
    written: str = Field(description="the beginning of the move that was written")
    probability: float = Field(description="the model's probability of the token")
    loose: bool | None = Field(None, description="legal by Davis's rule; for UCI squares only")
    since_promotion: int | None = Field(None, description="tokens since the last promotion; 1 directly after it")


class TokenLegality(Kind):
    """Legality of the most probable next token, at every token of given games, by phase.

    The model reads each game once (Davis 2026). A token is scored if a move follows it. Strict: the token continues a
    legal move with the same beginning as the game's own move. Loose (Davis's rule for UCI squares): the origin of any
    legal move, the destination of any legal move regardless of its origin, and any token if a promotion is due. The
    mass is the probability of all strictly legal tokens. One unit is one game. A game longer than the model's context
    is scored up to the end of the context.
    """

    name = "token-legality"
    example = "--checkpoint reference --dataset sample:test --games 8"
    tables = ("score", "trial")
    spec = TokenLegalitySpec
    options = GameBatches
    columns: ClassVar[Mapping[str, type[BaseModel]]] = {"score": PhaseScore, "trial": TokenError}
    queries = ("legal moves by phase",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "davis": {"games": 100_000, "shortest": True, "shortest_by": "tokens"}
    }

    def units(self, spec: TokenLegalitySpec, inputs: Inputs) -> int:
        inputs.checkpoint(spec.checkpoint)
        return len(select_scored_games(spec, inputs)[1])

    def estimate(self, spec: TokenLegalitySpec, inputs: Inputs) -> RunEstimate:
        games = self.units(spec, inputs)
        rows = games * len(inputs.encoding(spec.checkpoint).phases)
        return RunEstimate({"score": rows}, operations=count_reading_operations(spec.checkpoint, inputs, games))

    def check(self, spec: TokenLegalitySpec, inputs: Inputs) -> None:
        """Raise an error for a model of positions, and for games that the model was trained on."""
        encoding = inputs.encoding(spec.checkpoint)
        if encoding.content == "position":
            raise BadInputError(f"{encoding.name} writes positions, so a game has no tokens to score",
                                "chessreg run legality")  # fmt: skip
        games, places = select_scored_games(spec, inputs)
        overlap.refuse_overlap(inputs, spec.checkpoint, games, places, spec.allow_overlap)

    def run(self, task: Task[TokenLegalitySpec, GameBatches]) -> None:
        from chessreg.models.decoding.next_tokens import get_masked_ids, iterate_next_token_logprobs

        spec = task.spec
        model = task.model(spec.checkpoint)
        games, places = select_scored_games(spec, task.inputs)
        masked_ids = get_masked_ids(model.encoding) if spec.mask_unused else ()
        size = task.options.games_per_encoding
        for start in range(0, len(task.units), size):
            units = task.units[start : start + size]
            rows = places[units]
            tokens, packed_games = model.encoding.games(games, rows), games.moves(rows)
            places_of = find_turns(model.encoding, tokens)
            sequences = [tokens.item(item)[: model.block_size] for item in range(len(tokens))]
            for item, logprobs in iterate_next_token_logprobs(model, sequences, task.options.batch_games, masked_ids):
                predictions = predict_tokens(
                    model.encoding, sequences[item], places_of[item], unpack_moves(packed_games[item]), logprobs
                )
                emit_phase_scores(task, model.encoding, units[item], int(rows[item]), list(predictions))
                task.done(units[item])

    def board_views(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        """Return one frame for each illegal prediction of a game: the position, the written part of the move, and the
        token."""
        errors = inputs.read_unit_rows(tables.Trial, row, tables.Trial.sample.desc())
        return [replace(build_error_frame(error), ply=error.ply) for error in errors]


def select_scored_games(spec: TokenLegalitySpec, inputs: Inputs) -> tuple[Games, np.ndarray]:
    """Return the dataset, and the rows of the games to score, int64 [n]; with --shortest the shortest first."""
    if not spec.shortest:
        return select_games(spec, inputs)
    all_games_spec = extract_selection(spec.model_dump() | {"games": EVERY_GAME})
    games, places = select_games(all_games_spec, inputs)
    inputs.note_shortage(spec, "games", len(places))
    length = convert_column_to_numpy(games.table(["plies"]).column("plies"))[places]
    encoding = inputs.encoding(spec.checkpoint)
    if spec.shortest_by == "tokens" and encoding.content != "position":
        length = np.diff(encoding.games(games, places).offsets)
    return games, places[np.argsort(length, kind="stable")[: spec.games]]


@dataclass(frozen=True)
class TokenTurns:
    """Turns of one game: the token int64 [turns] after which each move is written, its ply, and the phase int8
    [tokens]."""

    token: np.ndarray
    ply: np.ndarray
    phase: np.ndarray


def find_turns(encoding: Encoding, tokens: Tokens) -> list[TokenTurns]:
    """Return the turns of each item."""
    turns, every = encoding.sites("turns", tokens), encoding.sites("all", tokens)
    edges = np.searchsorted(turns.item, np.arange(len(tokens) + 1))
    return [
        TokenTurns(
            turns.token[edges[item] : edges[item + 1]],
            turns.ply[edges[item] : edges[item + 1]],
            every.phase[tokens.offsets[item] : tokens.offsets[item + 1]],
        )
        for item in range(len(tokens))
    ]


@dataclass(frozen=True)
class TokenPrediction:
    """The prediction after one token.

    `predicted_id` is the most probable token, with its probability and legality. `mass` is the probability of all
    strictly legal tokens. `since_promotion` counts tokens since the last promotion; None before the first.
    """

    place: int
    ply: int
    phase: int
    board: str
    written_ids: tuple[int, ...]
    predicted_id: int
    probability: float
    strict: bool
    loose: bool | None
    mass: float
    since_promotion: int | None


def predict_tokens(
    encoding: Encoding, ids: np.ndarray, turns: TokenTurns, moves: list[chess.Move], logprobs: np.ndarray
) -> Iterator[TokenPrediction]:
    """Yield every prediction of a move's token in a game with tokens `ids` [n], from log-probabilities [n,
    vocabulary]."""
    best_tokens = logprobs.argmax(-1)
    squares = isinstance(encoding, UciSquare)
    board, promotion_depth = chess.Board(), None
    for token, ply in zip(turns.token.tolist(), turns.ply.tolist(), strict=True):
        if ply >= len(moves) or token >= len(ids):
            return
        answers = encoding.answers(board)
        move_answers = answers[moves[ply]]
        fen = board.fen()
        for depth in range(min(len(move_answers), len(ids) - token)):
            place = token + depth
            legal = {a[depth] for a in answers.values() if len(a) > depth and a[:depth] == move_answers[:depth]}
            predicted_id = int(best_tokens[place])
            yield TokenPrediction(
                place=place,
                ply=ply,
                phase=int(turns.phase[place]),
                board=fen,
                written_ids=move_answers[:depth],
                predicted_id=predicted_id,
                probability=float(np.exp(logprobs[place, predicted_id])),
                strict=predicted_id in legal,
                loose=is_loosely_legal(answers.values(), depth, predicted_id) if squares else None,
                mass=min(float(np.exp(logprobs[place, sorted(legal)].astype(np.float64)).sum()), 1.0),
                since_promotion=None if promotion_depth is None else place + 1 - promotion_depth,
            )
        if moves[ply].promotion:
            promotion_depth = token + len(move_answers)
        board.push(moves[ply])


def is_loosely_legal(answers: Collection[tuple[int, ...]], depth: int, predicted_id: int) -> bool:
    """Return whether a token is legal by Davis's rule: the origin or destination of any legal move; any token if a
    promotion is due."""
    return depth == 2 or any(answer[depth] == predicted_id for answer in answers)


def emit_phase_scores(
    task: Task[TokenLegalitySpec, GameBatches],
    encoding: Encoding,
    unit: int,
    game: int,
    predictions: list[TokenPrediction],
) -> None:
    """Emit the scores of one game (row `game` of the dataset) by phase, and a row for each illegal one of its
    `predictions`."""
    for number in sorted({one.phase for one in predictions}):
        phase_trials = [one for one in predictions if one.phase == number]
        near_trials = [
            one
            for one in phase_trials
            if (one.since_promotion or task.spec.near_promotion + 1) <= task.spec.near_promotion
        ]
        loose_verdicts = [one.loose for one in phase_trials if one.loose is not None]
        task.emit(
            "score",
            unit,
            PhaseScore(
                phase=number,
                loose=sum(loose_verdicts) if loose_verdicts else None,
                mass=sum(one.mass for one in phase_trials),
                near=len(near_trials),
                near_correct=sum(one.strict for one in near_trials),
            ),
            split=encoding.phases[number],
            item=game,
            layer=None,
            n=len(phase_trials),
            correct=sum(one.strict for one in phase_trials),
        )
    for one in predictions:
        if not one.strict:
            task.emit(
                "trial",
                unit,
                TokenError(
                    token=one.place + 1,
                    phase=encoding.phases[one.phase],
                    written=encoding.answer_text(one.written_ids),
                    probability=one.probability,
                    loose=one.loose,
                    since_promotion=one.since_promotion,
                ),
                condition="clean",
                sample=-one.place - 1,  # greedy predictions count down, one for each token
                item=game,
                ply=one.ply,
                fen=one.board,
                text=encoding.vocabulary[one.predicted_id],
                legal_original=False,
                mass_original=one.mass,
            )


def build_error_frame(row: tables.Trial) -> BoardFrame:
    """Return the position with the predicted square marked, and an arrow from the written origin."""
    extra = row.detail or {}
    marks: dict[int, Mark] = {}
    arrows: list[Arrow] = []
    written_text = str(extra.get("written", ""))
    origin = chess.parse_square(written_text) if written_text in chess.SQUARE_NAMES else None
    if origin is not None:
        marks[origin] = "from"
    if row.text in chess.SQUARE_NAMES:
        square = chess.parse_square(row.text)
        marks[square] = "illegal"
        if origin not in (None, square):
            arrows.append(Arrow(origin, square, 1.0, row.text))
    probability = f"probability {extra.get('probability', 0.0):.3f}, legal tokens {row.mass_original or 0.0:.3f}"
    after = f" after {written_text!r}" if written_text else ""
    return BoardFrame.from_board(
        chess.Board(row.fen),
        title=f"game {row.item}, ply {row.ply}, token {extra.get('token')}",
        marks=marks,
        arrows=arrows,
        caption=[f"the model writes {row.text!r}{after}: illegal", probability],
    )
