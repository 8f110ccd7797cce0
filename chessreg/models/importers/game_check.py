"""A check of imported weights on games: does the model predict real moves? Comparing logits cannot reveal a wrong order
of tokens; this does.

It uses the first 40 plies of 20 bundled sample games (fewer for a large model). For an encoding of games, the loss is
over every token; for positions and prompts, over the tokens of the played move. At every ninth ply the model writes its
most probable move.
"""

from __future__ import annotations

import io
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
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
    import torch

    from chessreg.encodings import Encoding
    from chessreg.models.language_model import LanguageModel

SAMPLE_GAMES = "sample-games.pgn.zst"
GAMES, PLIES = 20, 40
ASKED_PLIES = range(0, PLIES, 9)
BATCH_ROWS = 8
MIN_GAMES = 4
MAX_WORK = 1 << 39  # parameters times tokens, some seconds on a CPU; a larger model reads fewer games


@dataclass(frozen=True)
class GameCheck:
    """`loss` and `entropy` in nats per token; `legal` is the share of `turns` whose most probable text is a legal move.

    `entropy` is that of single tokens at the same places: a trained model is below it. A value is None if the model
    cannot compute it: its context is too short, its logits are not finite, or it has no answers.
    """

    games: int
    tokens: int = 0
    loss: float | None = None
    entropy: float | None = None
    turns: int = 0
    legal: float | None = None
    applies: bool = True
    """False for a model of values, whose predictions do not occur in games."""

    @property
    def has_learned(self) -> bool:
        """Whether the loss is below the entropy of single tokens, or most moves are legal.

        A policy trained on best moves can predict the moves of weak players worse than their frequencies do.
        """
        predicts = self.loss is not None and self.entropy is not None and self.loss < self.entropy
        return predicts or (self.legal or 0.0) >= 0.5

    def as_json(self) -> dict[str, Any]:
        """Return the record stored with the checkpoint, with numbers rounded to four decimals."""
        numbers = {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}
        return {**numbers, "learned": self.has_learned if self.applies else None}


class SampleTurn(NamedTuple):
    """A board of a sample game, the tokens after which the model writes its move, and the move played."""

    game: int
    ply: int
    board: chess.Board
    prompt: tuple[int, ...]
    move: chess.Move


class Sample(NamedTuple):
    """The turns at which a model moves, ordered by ply, and the tokens of each game (for an encoding of games)."""

    turns: list[SampleTurn]
    texts: list[tuple[int, ...]]


def check_on_games(model: LanguageModel) -> GameCheck:
    """Return loss and first-try legal rate of a model on the sample games (all 20 up to 50 million parameters).

    A prompt has hundreds of tokens, so a model that reads prompts gets one ply of each game.
    """
    from chessreg.models.adapters.base import VALUE_HEADS

    encoding = model.encoding
    if model.head in VALUE_HEADS:
        return GameCheck(0, applies=False)
    if encoding.answer_size > model.outputs:
        return GameCheck(0)
    games = choose_game_count(model)
    loss, entropy, tokens = compute_loss(model, iterate_predictions(encoding, model.block_size, games))
    legal, turns = measure_legal_rate(model, games)
    return GameCheck(games, tokens, loss, entropy, turns, legal)


def choose_game_count(model: LanguageModel) -> int:
    """Return how many of the sample games a model of this size reads."""
    tokens = 2 * sum(
        len(sequence) for sequence, _ in iterate_predictions(model.encoding, model.block_size, GAMES)
    )  # once for the loss, once for the moves
    parameters = sum(parameter.numel() for parameter in model.network.parameters())
    return max(MIN_GAMES, min(GAMES, GAMES * MAX_WORK // max(parameters * tokens, 1)))


def measure_loss_on_games(model: LanguageModel) -> float | None:
    """Return the loss on the first sample games, for a comparison of several models; None if the model cannot compute
    it."""
    encoding = model.encoding
    if encoding.answer_size > model.outputs:
        return None
    return compute_loss(model, iterate_predictions(encoding, model.block_size, MIN_GAMES))[0]


def measure_residual_norms(model: LanguageModel, hook_points: Collection[str]) -> dict[str, float]:
    """Return hook point → mean norm of the residual at a token, over the first sample games; empty for an encoding of
    positions."""
    import torch

    residuals: dict[str, torch.Tensor] = {}
    norms: dict[str, list[torch.Tensor]] = {}
    known_points = set(hook_points) & model.network.hook_points.keys()
    for text in get_sample(model.encoding).texts[:MIN_GAMES] if known_points else ():
        with torch.inference_mode(), model.watch_hook_points(known_points, residuals.__setitem__):
            model.logits(torch.tensor([text[: model.block_size]]))
        for point, residual in residuals.items():
            norms.setdefault(point, []).append(residual.float().norm(dim=-1).flatten())
    return {point: float(torch.cat(each).mean()) for point, each in norms.items()}


@cache
def read_sample_games() -> tuple[tuple[chess.Move, ...], ...]:
    """Return the moves of the first 20 sample games, at most 40 plies of each."""
    import zstandard

    packed_file = files("chessreg") / "data" / SAMPLE_GAMES
    with packed_file.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as text_stream:
        text = io.TextIOWrapper(text_stream, encoding="utf-8")
        games = [chess.pgn.read_game(text) for _ in range(GAMES)]
    return tuple(tuple(itertools.islice(game.mainline_moves(), PLIES)) for game in games if game is not None)


def get_sample(encoding: Encoding) -> Sample:
    """Return the sample games in an encoding."""
    return _make_sample(encoding)  # type: ignore[arg-type]  # mypy: a protocol is not hashable


@lru_cache(maxsize=8)
def _make_sample(encoding: Encoding) -> Sample:
    """Return the sample games in an encoding."""
    one_each = isinstance(encoding, PromptEncoding)
    turns = []
    for place, ply in enumerate(ASKED_PLIES):
        for number, moves in enumerate(read_sample_games()):
            if ply < len(moves) and (not one_each or place == number % len(ASKED_PLIES)):
                board = play_moves(moves[:ply])
                turns.append(SampleTurn(number, ply, board, tuple(encoding.prompt(board)), moves[ply]))
    history = encoding.content == "history"
    return Sample(turns, [encoding.prompt(play_moves(moves)) for moves in read_sample_games()] if history else [])


def play_moves(moves: Sequence[chess.Move]) -> chess.Board:
    """Return the board after these moves."""
    board = chess.Board()
    for move in moves:
        board.push(move)
    return board


def iterate_predictions(
    encoding: Encoding, block_size: int, games: int
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield (tokens to read, tokens that the last of these predict) for the rows of the first games that fit
    `block_size`."""
    sample = get_sample(encoding)
    for text in sample.texts[:games]:
        ids = text[: block_size + 1]
        if len(ids) > 1:
            yield ids[:-1], ids[1:]
    for turn in () if encoding.content == "history" else sample.turns:
        if turn.game >= games:
            continue
        answer = encoding.answer(turn.board, turn.move)
        tokens = (*turn.prompt, *answer[:-1])
        if len(tokens) <= block_size:
            yield tokens, answer


def compute_loss(
    model: LanguageModel, rows: Iterator[tuple[Sequence[int], Sequence[int]]]
) -> tuple[float | None, float | None, int]:
    """Return the mean negative log-probability of the predicted tokens, the entropy of single tokens, and their number.

    The loss is None if it is not finite; both are None without tokens.
    """
    import torch

    total, counts = 0.0, Counter[int]()
    sorted_rows = sorted(rows, key=lambda row: len(row[0]))
    causal = model.attention == "causal"  # only then may rows be padded on the right
    for _, group in itertools.groupby(sorted_rows, lambda row: causal or len(row[0])):
        while batch := list(itertools.islice(group, BATCH_ROWS)):
            tokens = torch.zeros(len(batch), len(batch[-1][0]), dtype=torch.int64)
            for row, (sequence, _) in enumerate(batch):
                tokens[row, : len(sequence)] = torch.tensor(sequence)
            logits = model.logits(tokens)
            for row, (sequence, targets) in enumerate(batch):
                end = min(len(sequence), logits.shape[1])  # an action head has logits only after the last token
                logprobs = torch.log_softmax(logits[row, end - len(targets) : end].float(), -1)
                total -= float(logprobs.gather(1, torch.tensor(targets, device=logprobs.device)[:, None]).sum())
                counts.update(targets)
    count = counts.total()
    if not count:
        return None, None, 0
    entropy = -sum(n / count * math.log(n / count) for n in counts.values())
    return total / count if math.isfinite(total) else None, entropy, count


def measure_legal_rate(model: LanguageModel, games: int) -> tuple[float | None, int]:
    """Return the share of turns whose most probable text is a legal move, and the number of turns that fit the context.

    None without such a turn, and if logits are not finite.
    """
    from chessreg.models.decoding import policies
    from chessreg.models.decoding.session import open_decoding_session

    encoding = model.encoding
    needed_tokens = encoding.max_move_tokens + (1 if encoding.content == "history" else -1)  # tokens after the prompt
    greedy = policies.make_policy("free", (0.0,), resigns=False)
    session = open_decoding_session(model, games)
    legal = turn_count = 0
    for _, at in itertools.groupby(get_sample(encoding).turns, lambda turn: turn.ply):
        fitting_turns = (
            turn for turn in at if turn.game < games and len(turn.prompt) + needed_tokens <= model.block_size
        )
        turns = {turn.game: turn for turn in fitting_turns}
        if not turns:
            continue
        try:
            session.sync([turns[row].prompt if row in turns else session.tokens[row] for row in range(games)])
            model_turns = [
                policies.ModelTurn(game, turn.board, (Stream.IMPORT_CHECK, game)) for game, turn in turns.items()
            ]
            choices = policies.choose_moves(greedy, session, encoding, model_turns)
        except DivergedError:
            return None, 0
        legal += sum(choice.move is not None for choice in choices)
        turn_count += len(choices)
    return (legal / turn_count, turn_count) if turn_count else (None, 0)
