"""How the model's move is chosen: a small registry of policies, each written as one word of text.

| text | what it does |
|---|---|
| `retry:N` | sample the move's text, up to N times; none legal: the game is forfeited (Karvonen: 5) |
| `legal` | draw from the model's exact probability over the legal moves: never illegal, skill apart from legality |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from chessreg.errors import BadInputError, NotFoundError

if TYPE_CHECKING:
    import chess

    from chessreg.games.tokenizers import Tokenizer
    from chessreg.models.decoding import DecodingSession

RESIGNATIONS = frozenset({"1-0", "0-1", "1/2-1/2"})
"""A move text that is a game result; chess_gpt_eval counts each of them as resigning."""


@dataclass(frozen=True)
class Turn:
    """The model is to move on `board`, whose prompt row `row` of the session holds. `key` names the draws.

    `prompt` is there when the session has no room for it and a move: the row then holds something else, and the oldest
    tokens are to be dropped.
    """

    row: int
    board: chess.Board
    key: tuple[int | str, ...]
    prompt: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Choice:
    """What the model did. `illegal` are the texts that were no legal move, in order; no move and no resignation is a
    forfeit. `legal_mass` is the exact probability that the model's text is a legal move, where the policy knows it."""

    move: chess.Move | None
    illegal: tuple[str, ...] = ()
    resigned: bool = False
    legal_mass: float | None = None

    @property
    def tries(self) -> int:
        return len(self.illegal) + (self.move is not None or self.resigned)


class Policy(Protocol):
    """Chooses for many rows at once. `temperatures` has one number for each try; `move_tokens` is the most that a try
    may write, 0: as many as the tokenizer says."""

    @property
    def temperatures(self) -> tuple[float, ...]: ...

    @property
    def move_tokens(self) -> int: ...

    def choose(self, session: DecodingSession, tokenizer: Tokenizer, turns: Sequence[Turn]) -> list[Choice]: ...


Maker = Callable[[str, tuple[float, ...], bool, int], Policy]
"""Makes a policy from what follows the colon, the temperatures (empty: the policy's own), whether a game result written
as a move resigns, and how many tokens a try may write (0: as many as the tokenizer says). Raises BadInputError for what
it cannot use."""

M = TypeVar("M", bound=Maker)
_MAKERS: dict[str, Maker] = {}


def policy(name: str) -> Callable[[M], M]:
    """Register a maker of policies under a name. Raises ValueError when the name is taken."""

    def add(maker: M) -> M:
        if name in _MAKERS:
            raise ValueError(f"a policy {name!r} is registered already")
        _MAKERS[name] = maker
        return maker

    return add


def make_policy(text: str, temperatures: tuple[float, ...] = (), resigns: bool = True, move_tokens: int = 0) -> Policy:
    """The policy that `text` names. Raises NotFoundError for an unknown name, BadInputError for a bad argument."""
    name, _, argument = text.partition(":")
    if name not in _MAKERS:
        raise NotFoundError(f"there is no policy {name!r}", f"one of {', '.join(_MAKERS)}: retry:5, legal")
    return _MAKERS[name](argument, temperatures, resigns, move_tokens)


def author_temperature(attempt: int) -> float:
    """chess_gpt_eval's temperature of try `attempt` (0-based): 0.001, 0.201, 0.401, 0.5, 0.5 (specification 7.2).

    >>> [author_temperature(attempt) for attempt in range(5)]
    [0.001, 0.201, 0.401, 0.5, 0.5]
    """
    return round(min(attempt / 5 + 0.001, 0.5), 6)


@policy("retry")
@dataclass(frozen=True)
class Retry:
    """The paper's rule: sample, parse, try again, forfeit."""

    argument: str
    temperatures: tuple[float, ...]
    resigns: bool
    move_tokens: int = 0

    def __post_init__(self) -> None:
        if self.argument not in map(str, range(1, 256)):
            raise BadInputError(f"retry needs a number of tries from 1 to 255, not {self.argument!r}", "write retry:5")
        tries = int(self.argument)
        given = self.temperatures or tuple(author_temperature(attempt) for attempt in range(tries))
        given = given * tries if len(given) == 1 else given
        if len(given) != tries:
            raise BadInputError(f"{len(given)} temperatures for {tries} tries", "give one, or one for each try")
        object.__setattr__(self, "temperatures", given)

    def choose(self, session: DecodingSession, tokenizer: Tokenizer, turns: Sequence[Turn]) -> list[Choice]:
        before = session.mark()
        choices: dict[int, Choice] = {}
        illegal: list[list[str]] = [[] for _ in turns]
        pending = list(range(len(turns)))
        for attempt, temperature in enumerate(self.temperatures):
            texts = self._write(session, tokenizer, [turns[i] for i in pending], attempt, temperature)
            failed = []
            for i, text in zip(pending, texts, strict=True):
                move = tokenizer.parse(text, turns[i].board)
                if move is not None:
                    choices[i] = Choice(move, tuple(illegal[i]))
                elif self.resigns and first_word(text) in RESIGNATIONS:
                    choices[i] = Choice(None, tuple(illegal[i]), resigned=True)
                else:
                    illegal[i].append(text)
                    failed.append(i)
            session.restore(before, [turns[i].row for i in failed])
            pending = failed
            if not pending:
                break
        return [choices.get(i) or Choice(None, tuple(illegal[i])) for i in range(len(turns))]

    def _write(
        self, session: DecodingSession, tokenizer: Tokenizer, turns: list[Turn], attempt: int, temperature: float
    ) -> list[str]:
        """The text of one try in each of these turns."""
        from chessreg.experiments.playing.cropping import sample_cropped
        from chessreg.models.sampling import sample_moves

        limit = self.move_tokens or tokenizer.max_move_tokens
        fitting = [i for i, turn in enumerate(turns) if turn.prompt is None]
        texts = [""] * len(turns)
        if fitting:
            sampled = sample_moves(
                session,
                tokenizer,
                [(*turns[i].key, attempt) for i in fitting],
                temperature=temperature,
                max_tokens=limit,
                rows=[turns[i].row for i in fitting],
                keep=True,  # the move's tokens need not be computed again for the next turn
            )
            for i, sample in zip(fitting, sampled, strict=True):
                texts[i] = sample.text
        long = [i for i, turn in enumerate(turns) if turn.prompt is not None]
        if long:
            prompts = [turns[i].prompt or () for i in long]
            keys = [(*turns[i].key, attempt) for i in long]
            cropped = sample_cropped(session, tokenizer, prompts, keys, temperature=temperature, max_tokens=limit)
            for i, text in zip(long, cropped, strict=True):
                texts[i] = text
        return texts


def first_word(text: str) -> str:
    """What counts as the move in a text: chess_gpt_eval cuts at `;` and takes the first word."""
    return next(iter(text.split(";", 1)[0].split()), "")


@policy("legal")
@dataclass(frozen=True)
class Legal:
    """Draw from the model's distribution over the legal moves, renormalised, at one temperature (default 1)."""

    argument: str
    temperatures: tuple[float, ...]
    resigns: bool
    move_tokens: int = 0

    def __post_init__(self) -> None:
        if self.argument:
            raise BadInputError(f"the policy legal takes no argument, not {self.argument!r}")
        object.__setattr__(self, "temperatures", self.temperatures or (1.0,))
        object.__setattr__(self, "move_tokens", 0)  # nothing is written
        if len(self.temperatures) != 1:
            raise BadInputError(f"the policy legal has one temperature, not {len(self.temperatures)}")

    def choose(self, session: DecodingSession, tokenizer: Tokenizer, turns: Sequence[Turn]) -> list[Choice]:
        import chess

        from chessreg.models.legal import choose_legal, legal_move_mass, move_logprobs

        fitting = [turn for turn in turns if turn.prompt is None]
        long = [turn for turn in turns if turn.prompt is not None]
        scored = dict(
            zip(
                (turn.row for turn in fitting),
                move_logprobs(session, [turn.board for turn in fitting], tokenizer, [turn.row for turn in fitting]),
                strict=True,
            )
        )
        if long:  # the newest text, with room for the longest move
            scratch = session.model.session(len(long), session.edits)
            room = session.model.block_size - (tokenizer.max_move_tokens - 1)
            scratch.sync([(turn.prompt or ())[-room:] for turn in long])
            fresh = move_logprobs(scratch, [turn.board for turn in long], tokenizer)
            scored.update(zip((turn.row for turn in long), fresh, strict=True))
        choices = []
        for turn in turns:
            logprobs = scored[turn.row]
            text = choose_legal(logprobs, self.temperatures[0], *turn.key, 0)
            choices.append(Choice(chess.Move.from_uci(text), legal_mass=legal_move_mass(logprobs)))
        return choices
