"""`perplexity`: a model's perplexity on unseen games, per token and per ply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import chess
import numpy as np
from pydantic import BaseModel, Field

from chessreg.errors import BadInputError
from chessreg.experiments.settings import overlap
from chessreg.experiments.settings.games import GameBatches, GameSelection, select_games
from chessreg.experiments.settings.overlap import ALLOW_OVERLAP, AllowOverlap
from chessreg.games.boards.moves import unpack_moves
from chessreg.games.datasets.dataset import convert_column_to_numpy
from chessreg.runs.cost import MOVES_PER_GAME, count_reading_operations
from chessreg.runs.kind import Kind, RunEstimate
from chessreg.runs.spec import CheckpointRef

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chessreg.encodings import Encoding
    from chessreg.games.datasets.dataset import Games
    from chessreg.models.language_model import LanguageModel
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

EndToken = Literal["exclude", "include"]
BATCH_BOARDS = 256  # positions in one batch of a model of positions


class PerplexitySpec(GameSelection):
    checkpoint: CheckpointRef = Field(description="the model")
    games: int = Field(1000, ge=1, description="games, the first in file order")
    end_token: EndToken = Field(
        "exclude",
        description="whether the end of a game is predicted as well: its end token (LCB's </s>), or the token "
        "that begins the next game",
    )
    mask_unused: bool = Field(
        True, description="give no probability to tokens that games are never written with (LCB's piece letters)"
    )
    allow_overlap: AllowOverlap = ALLOW_OVERLAP


class PerplexityRow(BaseModel):
    """Columns of a game. The name is `nll`, item its row in the dataset, and value the nats; empty for a game longer
    than the context."""

    tokens: Annotated[int, Field(description="tokens predicted")]
    plies: Annotated[int, Field(description="plies, plus one if the end of the game is predicted")]


class Perplexity(Kind):
    """Perplexity of games per token and per ply, in the conventions of Toshniwal et al. (LCB).

    Per token: the mean negative log-likelihood of a predicted token. Per ply (LCB's canonical form): the total of a
    game divided by its plies, or by its plies plus one if the end token is predicted, so that encodings are comparable.
    A position encoding predicts each played move from its position alone. One unit is one game. A game that is longer
    than the model's context has a row without a value.
    """

    name = "perplexity"
    example = "--checkpoint reference --dataset sample:test --games 8"
    tables = ("prediction",)
    spec = PerplexitySpec
    options = GameBatches
    columns: ClassVar[Mapping[str, type[BaseModel]]] = {"prediction": PerplexityRow}
    queries = ("perplexity",)

    def units(self, spec: PerplexitySpec, inputs: Inputs) -> int:
        inputs.checkpoint(spec.checkpoint)
        return len(select_games(spec, inputs)[1])

    def estimate(self, spec: PerplexitySpec, inputs: Inputs) -> RunEstimate:
        games = self.units(spec, inputs)
        turns = games * 2 * MOVES_PER_GAME if inputs.encoding(spec.checkpoint).content == "position" else games
        return RunEstimate({"prediction": games}, operations=count_reading_operations(spec.checkpoint, inputs, turns))

    def check(self, spec: PerplexitySpec, inputs: Inputs) -> None:
        """Raise an error for games that the model was trained on, and for an end token of a model of positions."""
        if spec.end_token == "include" and inputs.encoding(spec.checkpoint).content == "position":
            raise BadInputError("a model of positions does not predict the end of a game", "give --end-token exclude")
        games, places = select_games(spec, inputs)
        overlap.refuse_overlap(inputs, spec.checkpoint, games, places, spec.allow_overlap)

    def run(self, task: Task[PerplexitySpec, GameBatches]) -> None:
        spec = task.spec
        model = task.model(spec.checkpoint)
        games, places = select_games(spec, task.inputs)
        size = task.options.games_per_encoding
        for start in range(0, len(task.units), size):
            units = task.units[start : start + size]
            rows = places[units]
            plies = convert_column_to_numpy(games.take(rows, ["plies"])["plies"]).astype(np.int64)
            if model.encoding.content == "history":
                games_scored = score_games(model, games, rows, spec, task.options.batch_games)
            else:
                games_scored = score_game_positions(model, games, rows)
            for unit, place, game_plies, (nll, tokens) in zip(
                units, rows.tolist(), plies.tolist(), games_scored, strict=True
            ):
                extra = PerplexityRow(tokens=tokens, plies=game_plies + (spec.end_token == "include"))
                task.emit("prediction", unit, extra, item=place, name="nll", text=None, value=nll)
            task.done(*units)
            task.progress(task.units_done / len(task.units), f"{task.units_done:,} games")


def score_games(
    model: LanguageModel, games: Games, places: np.ndarray, spec: PerplexitySpec, batch: int
) -> list[tuple[float | None, int]]:
    """Return (negative log-likelihood in nats, tokens predicted) of the games at rows `places` int [n]. The first is
    None for a game longer than the context. `batch` games are read per pass."""
    from chessreg.models.decoding.next_tokens import get_masked_ids, iterate_next_token_logprobs

    tokens = model.encoding.games(games, places)
    sequences = [set_end_token(model.encoding, tokens.item(item), spec.end_token) for item in range(len(tokens))]
    fitting_items = [item for item, ids in enumerate(sequences) if len(ids) - 1 <= model.block_size]
    scores: list[tuple[float | None, int]] = [(None, len(ids) - 1) for ids in sequences]
    masked_ids = get_masked_ids(model.encoding) if spec.mask_unused else ()
    inputs = [sequences[item][:-1] for item in fitting_items]
    for number, logprobs in iterate_next_token_logprobs(model, inputs, batch, masked_ids):
        item = fitting_items[number]
        targets = sequences[item][1:]
        scores[item] = -float(logprobs[np.arange(len(targets)), targets].astype(np.float64).sum()), len(targets)
    return scores


def set_end_token(encoding: Encoding, ids: np.ndarray, end_token: EndToken) -> np.ndarray:
    """Return a game's ids int64 [n] with or without the token that ends it."""
    ids = ids.astype(np.int64)
    is_closed = len(ids) > 1 and int(ids[-1]) in encoding.boundary_ids
    if end_token == "include":
        return ids if is_closed else np.append(ids, ids[0])  # the token that begins a game, and so the next game
    return ids[:-1] if is_closed else ids


def score_game_positions(model: LanguageModel, games: Games, places: np.ndarray) -> list[tuple[float | None, int]]:
    """Return the same for a model of positions, from the canonical answer of every played move."""
    from chessreg.models.decoding.legal import score_answers
    from chessreg.models.decoding.session import open_decoding_session

    scores: list[tuple[float | None, int]] = []
    for packed_moves in games.moves(places):
        board, prompts, answers = chess.Board(), [], []
        for move in unpack_moves(packed_moves):
            prompts.append(model.encoding.prompt(board))
            answers.append(model.encoding.answer(board, move))
            board.push(move)
        count = sum(map(len, answers))
        if max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True)) - 1 > model.block_size:
            scores.append((None, count))
            continue
        total = 0.0
        for start in range(0, len(prompts), BATCH_BOARDS):
            session = open_decoding_session(model, len(prompts[start : start + BATCH_BOARDS]))
            session.feed(prompts[start : start + BATCH_BOARDS])
            answer_scores = score_answers(session, [[answer] for answer in answers[start : start + BATCH_BOARDS]])
            total -= sum(float(one[0]) for one in answer_scores)
        scores.append((total, count))
    return scores
