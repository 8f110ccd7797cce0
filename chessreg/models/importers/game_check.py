"""A check of imported weights on games: does the model predict real moves? Comparing logits cannot show whether its
tokens are in the order of the encoding; this does.

20 of the bundled sample games (fewer for a large model), their first 40 plies. Of an encoding of games the loss is over
every token; of positions and prompts it is over the tokens of the played move. At every ninth ply the model writes its
most probable move.
"""

from __future__ import annotations

import io
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import chess
import chess.pgn

from chessreg.encodings.prompts import PromptEncoding
from chessreg.errors import DivergedError
from chessreg.noise import Stream

if TYPE_CHECKING:
    from chessreg.encodings import Encoding
    from chessreg.models.language_model import LanguageModel

SAMPLE_GAMES = "sample-games.pgn.zst"
GAMES, PLIES = 20, 40
ASKED_PLIES = range(0, PLIES, 9)
BATCH_ROWS = 8
MIN_GAMES = 4
MAX_WORK = 1 << 39  # parameters times tokens: seconds on a CPU. A larger model reads fewer games.


@dataclass(frozen=True)
class GameCheck:
    """`loss` and `entropy` in nats per token, `legal` the share of `turns` whose most probable text is a legal move.

    entropy is that of single tokens in the same places: a model that has learned anything is below it. A value is None
    where the model cannot be asked: its context is too short, its logits are not finite, or it has no answers.
    """

    games: int
    tokens: int = 0
    loss: float | None = None
    entropy: float | None = None
    turns: int = 0
    legal: float | None = None
    applies: bool = True
    """False for a model of values, whose predictions games do not have."""

    @property
    def has_learned(self) -> bool:
        """Whether the loss is below the entropy of single tokens, or most moves are legal: a policy of best moves can
        predict the moves of weak players worse than their frequencies do."""
        predicts = self.loss is not None and self.entropy is not None and self.loss < self.entropy
        return predicts or (self.legal or 0.0) >= 0.5

    def as_json(self) -> dict[str, Any]:
        """The record that is stored with the checkpoint, numbers with four decimals."""
        numbers = {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}
        return {**numbers, "learned": self.has_learned if self.applies else None}


class SampleTurn(NamedTuple):
    """A board of a sample game, the tokens after which the model writes its move there, and the move played."""

    game: int
    ply: int
    board: chess.Board
    prompt: tuple[int, ...]
    move: chess.Move


class Sample(NamedTuple):
    """The turns at which a model moves, ordered by ply, and the tokens of each game (of an encoding of games)."""

    turns: list[SampleTurn]
    texts: list[tuple[int, ...]]


def check_on_games(model: LanguageModel) -> GameCheck:
    """Loss and first-try legal rate of a model on the sample games: on all 20 up to 50 million parameters, fewer games
    for a larger one.

    A prompt is hundreds of tokens, so a model that reads prompts is asked at one ply of each game.
    """
    from chessreg.models.adapters.base import VALUE_HEADS

    written = model.encoding
    if model.head in VALUE_HEADS:
        return GameCheck(0, applies=False)
    if written.answer_size > model.outputs:
        return GameCheck(0)
    games = choose_game_count(model)
    loss, entropy, tokens = compute_loss(model, iterate_predictions(written, model.block_size, games))
    legal, asked = measure_legal_rate(model, games)
    return GameCheck(games, tokens, loss, entropy, asked, legal)


def choose_game_count(model: LanguageModel) -> int:
    """How many of the sample games a model of this size reads."""
    tokens = 2 * sum(
        len(read) for read, _ in iterate_predictions(model.encoding, model.block_size, GAMES)
    )  # loss, then moves
    parameters = sum(parameter.numel() for parameter in model.network.parameters())
    return max(MIN_GAMES, min(GAMES, GAMES * MAX_WORK // max(parameters * tokens, 1)))


def measure_loss_on_games(model: LanguageModel) -> float | None:
    """The loss on the first sample games alone, for a comparison of several models."""
    written = model.encoding
    if written.answer_size > model.outputs:
        return None
    return compute_loss(model, iterate_predictions(written, model.block_size, MIN_GAMES))[0]


@cache
def read_sample_games() -> tuple[tuple[chess.Move, ...], ...]:
    """The moves of the first 20 sample games, at most 40 plies of each."""
    import zstandard

    packed = files("chessreg") / "data" / SAMPLE_GAMES
    with packed.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as unpacked:
        text = io.TextIOWrapper(unpacked, encoding="utf-8")
        games = [chess.pgn.read_game(text) for _ in range(GAMES)]
    return tuple(tuple(itertools.islice(game.mainline_moves(), PLIES)) for game in games if game is not None)


def get_sample(written: Encoding) -> Sample:
    """The sample games as an encoding writes them."""
    return _make_sample(written)  # type: ignore[arg-type]  # mypy: a protocol is not hashable


@lru_cache(maxsize=8)
def _make_sample(written: Encoding) -> Sample:
    one_each = isinstance(written, PromptEncoding)
    turns = []
    for place, ply in enumerate(ASKED_PLIES):
        for number, moves in enumerate(read_sample_games()):
            if ply < len(moves) and (not one_each or place == number % len(ASKED_PLIES)):
                board = play_moves(moves[:ply])
                turns.append(SampleTurn(number, ply, board, tuple(written.prompt(board)), moves[ply]))
    history = written.content == "history"
    return Sample(turns, [written.prompt(play_moves(moves)) for moves in read_sample_games()] if history else [])


def play_moves(moves: Sequence[chess.Move]) -> chess.Board:
    board = chess.Board()
    for move in moves:
        board.push(move)
    return board


def iterate_predictions(
    written: Encoding, block_size: int, games: int
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Tokens to read and the tokens that the last of these predict, for the rows of the first games that fit
    `block_size`."""
    sample = get_sample(written)
    for text in sample.texts[:games]:
        ids = text[: block_size + 1]
        if len(ids) > 1:
            yield ids[:-1], ids[1:]
    for turn in () if written.content == "history" else sample.turns:
        if turn.game >= games:
            continue
        answer = written.answer(turn.board, turn.move)
        tokens = (*turn.prompt, *answer[:-1])
        if len(tokens) <= block_size:
            yield tokens, answer


def compute_loss(
    model: LanguageModel, rows: Iterator[tuple[Sequence[int], Sequence[int]]]
) -> tuple[float | None, float | None, int]:
    """Mean negative log-probability of the predicted tokens, the entropy of single tokens among them, and their number.

    None for a loss that is not finite, and for both without any tokens.
    """
    import torch

    total, counts = 0.0, Counter[int]()
    ordered = sorted(rows, key=lambda row: len(row[0]))
    causal = model.attention == "causal"  # then rows may be padded on the right
    for _, alike in itertools.groupby(ordered, lambda row: causal or len(row[0])):
        while batch := list(itertools.islice(alike, BATCH_ROWS)):
            tokens = torch.zeros(len(batch), len(batch[-1][0]), dtype=torch.int64)
            for row, (read, _) in enumerate(batch):
                tokens[row, : len(read)] = torch.tensor(read)
            logits = model.logits(tokens)
            for row, (read, predicted) in enumerate(batch):
                end = min(len(read), logits.shape[1])  # an action head gives logits after the last token alone
                logprobs = torch.log_softmax(logits[row, end - len(predicted) : end].float(), -1)
                total -= float(logprobs.gather(1, torch.tensor(predicted, device=logprobs.device)[:, None]).sum())
                counts.update(predicted)
    count = counts.total()
    if not count:
        return None, None, 0
    entropy = -sum(n / count * math.log(n / count) for n in counts.values())
    return total / count if math.isfinite(total) else None, entropy, count


def measure_legal_rate(model: LanguageModel, games: int) -> tuple[float | None, int]:
    """The share of turns of the first games at which the most probable text is a legal move, and the number of turns
    that fit the context.

    None without such a turn, and where logits are not finite.
    """
    from chessreg.models.decoding import policies
    from chessreg.models.decoding.session import open_session

    written = model.encoding
    needed = written.max_move_tokens + (1 if written.content == "history" else -1)  # tokens behind the prompt
    greedy = policies.make_policy("free", (0.0,), resigns=False)
    session = open_session(model, games)
    legal = asked = 0
    for _, at in itertools.groupby(get_sample(written).turns, lambda turn: turn.ply):
        fitting = (turn for turn in at if turn.game < games and len(turn.prompt) + needed <= model.block_size)
        turns = {turn.game: turn for turn in fitting}
        if not turns:
            continue
        try:
            session.sync([turns[row].prompt if row in turns else session.tokens[row] for row in range(games)])
            asking = [policies.ModelTurn(game, turn.board, (Stream.IMPORT_CHECK, game)) for game, turn in turns.items()]
            choices = policies.choose_moves(greedy, session, written, asking)
        except DivergedError:
            return None, 0
        legal += sum(choice.move is not None for choice in choices)
        asked += len(choices)
    return (legal / asked, asked) if asked else (None, 0)
