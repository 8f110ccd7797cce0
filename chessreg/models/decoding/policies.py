"""Policies: registered rules that choose the model's move, each written as one word of text.

| text | rule |
|---|---|
| `free` | sample the move's text once; without a legal move the game is forfeited |
| `retry:N` | sample the move's text up to N times; without a legal move the game is forfeited (Karvonen: 5) |
| `trie` | sample only tokens that lead to a legal move, renormalized at every token |
| `legal` | draw from the model's exact probabilities of the legal moves, renormalized once over whole moves |
| `value` | for a model of values: the legal move with the highest expected return, like DeepMind's engines |

The rules work for every encoding; only the answers differ (`chessreg.encodings.base.Encoding`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from chessreg.errors import BadInputError
from chessreg.models.decoding.sampling import Key, draw_tokens
from chessreg.named import NameRegistry
from chessreg.noise import uniform

if TYPE_CHECKING:
    import chess
    from torch import Tensor

    from chessreg.encodings import Encoding
    from chessreg.models.decoding.legal import MoveDistribution
    from chessreg.models.decoding.session import DecodingSession

RESIGNATIONS = frozenset({"1-0", "0-1", "1/2-1/2"})
"""Move texts that are game results; chess_gpt_eval counts each as resigning."""


@dataclass(frozen=True)
class ModelTurn:
    """A turn of the model on `board`, whose prompt is in row `row` of the session. `key` names the draws.

    `prompt` is set if the prompt and a move exceed the session's context; the row then contains other tokens, and the
    oldest tokens have to be dropped.
    """

    row: int
    board: chess.Board
    key: tuple[int | str, ...]
    prompt: tuple[int, ...] | None = None


@dataclass
class Draft:
    """An unfinished turn.

    `start` and `logprobs` are the row's length and log-probabilities [vocab] with only the prompt; `token_ids` are the
    tokens of the current try, `illegal_texts` the texts of earlier tries.
    """

    turn: ModelTurn
    row: int
    start: int
    logprobs: Tensor
    token_ids: list[int] = field(default_factory=list)
    illegal_texts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class MoveChoice:
    """A completed turn.

    `illegal` are the texts that were not a legal move, in order. Without a move and a resignation, the turn is a
    forfeit. `legal_mass` is the exact probability that the model's text is a legal move, if the policy knows it. `text`
    is the written text of the move, if any, and `ids` the tokens of the last try.
    """

    move: chess.Move | None
    illegal: tuple[str, ...] = ()
    is_resignation: bool = False
    legal_mass: float | None = None
    text: str = ""
    ids: tuple[int, ...] = field(default=(), compare=False)

    @property
    def tries(self) -> int:
        return len(self.illegal) + (self.move is not None or self.is_resignation)


class Policy(Protocol):
    """Chooses moves for many rows at once, one pass of the model at a time.

    `temperatures` has one number per try. `move_tokens` is the maximum number of tokens per try, 0 for the encoding's
    maximum.
    """

    @property
    def temperatures(self) -> tuple[float, ...]: ...

    @property
    def move_tokens(self) -> int: ...

    def advance(self, session: DecodingSession, encoding: Encoding, drafts: Sequence[Draft]) -> list[MoveChoice | None]:
        """Advance these turns by one token each; return a choice for each completed turn, else None.

        New tokens are computed in the session's next pass.
        """
        ...


def begin_drafts(session: DecodingSession, turns: Sequence[ModelTurn]) -> list[Draft]:
    """Return drafts of turns whose prompts are in the session."""
    logprobs = session.refresh().clone()
    return [Draft(turn, turn.row, len(session.tokens[turn.row]), logprobs[turn.row]) for turn in turns]


def choose_moves(
    policy: Policy, session: DecodingSession, encoding: Encoding, turns: Sequence[ModelTurn]
) -> list[MoveChoice]:
    """Return the choice of each of `turns`, in order, running all passes they need. A turn's row is its row of the
    session, which must hold its prompt."""
    drafts = dict(enumerate(begin_drafts(session, turns)))
    choices: dict[int, MoveChoice] = {}
    while drafts:
        for i, choice in zip(list(drafts), policy.advance(session, encoding, list(drafts.values())), strict=True):
            if choice is not None:
                choices[i] = choice
                del drafts[i]
    return [choices[i] for i in range(len(turns))]


Maker = Callable[[str, tuple[float, ...], bool, int], Policy]
"""Makes a policy from (the text after the colon, temperatures or () for the default, whether a game result written as a
move resigns, maximum tokens per try or 0 for the encoding's). Raises BadInputError for invalid arguments."""

POLICIES: NameRegistry[Maker] = NameRegistry("policy", "retry:5, legal, trie, free, value")


def make_policy(text: str, temperatures: tuple[float, ...] = (), resigns: bool = True, move_tokens: int = 0) -> Policy:
    """Return the policy that `text` names, as in `retry:10`.

    `temperatures` has one value per try; empty: the policy's default. With `resigns`, an answer that is a resignation
    ends the game. `move_tokens` is the most tokens of a move, 0 for the encoding's. Raises NotFoundError for an unknown
    name, BadInputError for an invalid argument.
    """
    name, _, argument = text.partition(":")
    return POLICIES[name](argument, temperatures, resigns, move_tokens)


def get_author_temperature(attempt: int) -> float:
    """Return chess_gpt_eval's temperature of try `attempt` (0-based): 0.001, 0.201, 0.401, 0.5, 0.5.

    >>> [get_author_temperature(attempt) for attempt in range(5)]
    [0.001, 0.201, 0.401, 0.5, 0.5]
    """
    return round(min(attempt / 5 + 0.001, 0.5), 6)


@POLICIES.named("retry")
@dataclass(frozen=True)
class RetryPolicy:
    """Karvonen's rule: sample a text and parse it as a move; after an illegal text try again, at most `argument` tries;
    then forfeit."""

    argument: str
    temperatures: tuple[float, ...]
    resigns: bool
    move_tokens: int = 0

    def __post_init__(self) -> None:
        if self.argument not in map(str, range(1, 256)):
            raise BadInputError(f"retry needs a number of tries from 1 to 255, not {self.argument!r}", "write retry:5")
        tries = int(self.argument)
        temperatures = self.temperatures or tuple(get_author_temperature(attempt) for attempt in range(tries))
        temperatures = temperatures * tries if len(temperatures) == 1 else temperatures
        if len(temperatures) != tries:
            raise BadInputError(f"{len(temperatures)} temperatures for {tries} tries", "give one, or one for each try")
        object.__setattr__(self, "temperatures", temperatures)

    def advance(self, session: DecodingSession, encoding: Encoding, drafts: Sequence[Draft]) -> list[MoveChoice | None]:
        """Add one token to every text. A row with an illegal text starts its next try immediately, without waiting for
        others."""
        session.refresh()
        limit = self.move_tokens or encoding.max_move_tokens
        choices: dict[int, MoveChoice] = {}
        new: list[list[int]] = [[] for _ in range(len(session))]
        unprompted_drafts = [i for i, draft in enumerate(drafts) if draft.turn.prompt is None]
        while unprompted_drafts:
            failed_drafts = []
            for i, token in zip(
                unprompted_drafts, self._draw(session, [drafts[i] for i in unprompted_drafts]), strict=True
            ):
                draft = drafts[i]
                draft.token_ids.append(token)
                is_full = len(session.tokens[draft.row]) >= session.model.block_size
                if (
                    len(draft.token_ids) < limit
                    and not is_full
                    and not encoding.is_complete(draft.token_ids, draft.turn.board)
                ):
                    new[draft.row] = [token]
                elif (choice := self._judge(encoding, draft)) is not None:
                    choices[i] = choice
                else:
                    session.rewind(draft.row, draft.start, draft.logprobs)
                    failed_drafts.append(i)
            unprompted_drafts = failed_drafts
        session.extend(new)
        for i, draft in enumerate(drafts):
            if draft.turn.prompt is not None:
                choices[i] = self._choose_from_cropped_prompt(session, encoding, draft)
        return [choices.get(i) for i in range(len(drafts))]

    def _draw(self, session: DecodingSession, drafts: list[Draft]) -> list[int]:
        """Return the next token of each text."""
        logprobs = session.logprobs[[draft.row for draft in drafts]].cpu().numpy()
        heats = np.array([self.temperatures[len(draft.illegal_texts)] for draft in drafts])
        noise = [uniform(*draft.turn.key, len(draft.illegal_texts), len(draft.token_ids)) for draft in drafts]
        tokens: list[int] = draw_tokens(logprobs, heats, np.array(noise)).tolist()
        return tokens

    def _judge(self, encoding: Encoding, draft: Draft) -> MoveChoice | None:
        """Return the choice that a complete text means, or None for another try."""
        text = encoding.answer_text(draft.token_ids)
        move, ids = encoding.parse(draft.token_ids, draft.turn.board), tuple(draft.token_ids)
        draft.token_ids = []
        if move is not None:
            return MoveChoice(move, tuple(draft.illegal_texts), text=text, ids=ids)
        if self.resigns and read_first_word(text) in RESIGNATIONS:
            return MoveChoice(None, tuple(draft.illegal_texts), is_resignation=True)
        draft.illegal_texts.append(text)
        return (
            MoveChoice(None, tuple(draft.illegal_texts), ids=ids)
            if len(draft.illegal_texts) == len(self.temperatures)
            else None
        )

    def _choose_from_cropped_prompt(self, session: DecodingSession, encoding: Encoding, draft: Draft) -> MoveChoice:
        """Return the choice of a turn whose prompt does not fit the session, running all tries."""
        limit = self.move_tokens or encoding.max_move_tokens
        choice = None
        while choice is None:
            attempt = len(draft.illegal_texts)
            draft.token_ids = sample_cropped(
                session,
                encoding,
                [draft.turn.board],
                [draft.turn.prompt or ()],
                [(*draft.turn.key, attempt)],
                temperature=self.temperatures[attempt],
                max_tokens=limit,
            )[0]
            choice = self._judge(encoding, draft)
        return choice


def sample_cropped(
    session: DecodingSession,
    encoding: Encoding,
    boards: Sequence[chess.Board],
    prompts: Sequence[Sequence[int]],
    keys: Sequence[Key],
    *,
    temperature: float,
    max_tokens: int,
) -> list[list[int]]:
    """Return one move's tokens after each prompt, each token drawn given the newest tokens that fit the context.

    Every step shifts all tokens to other positions, so each token needs a whole pass. A text ends with the move on its
    board, or after `max_tokens`. The draws are those of `sample_trees` with the same keys. `session` provides the model
    and the edits and is not changed.
    """
    from chessreg.models.decoding.session import DecodingSession

    scratch = DecodingSession(session.model, len(prompts), session.edits)
    block = session.model.block_size
    sampled_ids: list[list[int]] = [[] for _ in prompts]
    active = list(range(len(prompts)))
    for step in range(max_tokens):
        contexts = [[*prompt, *new][-block:] for prompt, new in zip(prompts, sampled_ids, strict=True)]
        scratch.sync([contexts[r] if r in active else scratch.tokens[r] for r in range(len(prompts))])
        logprobs = scratch.logprobs[active].cpu().numpy()
        noise = np.array([uniform(*keys[r], step) if temperature > 0 else 0.0 for r in active])
        for r, token in zip(active, draw_tokens(logprobs, np.full(len(active), temperature), noise), strict=True):
            sampled_ids[r].append(int(token))
        active = [r for r in active if not encoding.is_complete(sampled_ids[r], boards[r])]
        if not active:
            break
    return sampled_ids


def read_first_word(text: str) -> str:
    """Return the first word of a text up to `;`, which is the move for chess_gpt_eval."""
    return next(iter(text.split(";", 1)[0].split()), "")


@POLICIES.named("free")
def make_free_policy(
    argument: str, temperatures: tuple[float, ...], resigns: bool, move_tokens: int = 0
) -> RetryPolicy:
    """Return a policy that accepts the model's first text, at one temperature (default 1): a retry with one try."""
    return RetryPolicy("1", check_one_temperature("free", argument, temperatures), resigns, move_tokens)


def check_one_temperature(name: str, argument: str, temperatures: tuple[float, ...]) -> tuple[float, ...]:
    """Return the temperatures of a policy that has one, (1.0,) by default.

    Raises BadInputError for several temperatures or an argument.
    """
    if argument:
        raise BadInputError(f"the policy {name} takes no argument, not {argument!r}")
    if len(temperatures) > 1:
        raise BadInputError(f"the policy {name} has one temperature, not {len(temperatures)}")
    return temperatures or (1.0,)


def open_newest_session(
    session: DecodingSession, encoding: Encoding, prompts: Sequence[Sequence[int]]
) -> DecodingSession:
    """Return a session of the same model and edits with the newest tokens of prompts that are too long, leaving room
    for the longest move."""
    from chessreg.models.decoding.session import DecodingSession

    scratch = DecodingSession(session.model, len(prompts), session.edits)
    room = session.model.block_size - (encoding.max_move_tokens - 1)
    scratch.sync([prompt[-room:] for prompt in prompts])
    return scratch


@dataclass(frozen=True)
class LegalMovePolicy:
    """Base class of policies that choose a legal move at one temperature, and so need no limit of tokens."""

    name: ClassVar[str]
    default_temperature: ClassVar[float] = 1.0
    argument: str
    temperatures: tuple[float, ...]
    resigns: bool
    move_tokens: int = 0

    def __post_init__(self) -> None:
        temperatures = self.temperatures or (self.default_temperature,)
        object.__setattr__(self, "temperatures", check_one_temperature(self.name, self.argument, temperatures))
        object.__setattr__(self, "move_tokens", 0)


@POLICIES.named("trie")
@dataclass(frozen=True)
class TriePolicy(LegalMovePolicy):
    """Draw token by token among those that lead to the canonical text of a legal move, at one temperature (default 1).

    At temperature 1, a move's probability is the product of its tokens' shares, not its share of the legal mass,
    because a token that leads to few legal moves keeps its whole probability.
    """

    name: ClassVar[str] = "trie"

    def advance(self, session: DecodingSession, encoding: Encoding, drafts: Sequence[Draft]) -> list[MoveChoice | None]:
        """Write one token of every text, and the following ones while only one is legal."""
        from chessreg.models.decoding.legal import Trie

        session.refresh()
        new: list[list[int]] = [[] for _ in range(len(session))]
        choices: list[MoveChoice | None] = []
        for draft in drafts:
            if draft.turn.prompt is not None:
                scratch = open_newest_session(session, encoding, [draft.turn.prompt])
                choices += choose_moves(self, scratch, encoding, [ModelTurn(0, draft.turn.board, draft.turn.key)])
                continue
            answers = encoding.answers(draft.turn.board)
            node, written_count = Trie.from_sets([list(answers.values())]), len(draft.token_ids)
            for token in draft.token_ids:
                node = node.children[token]
            logprobs = session.logprobs[draft.row].cpu().numpy()
            while not node.ending_sets:
                ids = sorted(node.children)
                if len(ids) > 1 and len(draft.token_ids) > written_count:
                    break  # the next token needs another pass
                token = ids[0] if len(ids) == 1 else self._draw(logprobs[ids], ids, draft)
                draft.token_ids.append(token)
                node = node.children[token]
            if node.ending_sets:
                moves = {ids: move for move, ids in answers.items()}
                choices.append(MoveChoice(moves[tuple(draft.token_ids)], text=encoding.answer_text(draft.token_ids)))
            else:
                new[draft.row] = draft.token_ids[written_count:]
                choices.append(None)
        session.extend(new)
        return choices

    def _draw(self, logprobs: np.ndarray, ids: list[int], draft: Draft) -> int:
        noise = np.array([uniform(*draft.turn.key, 0, len(draft.token_ids))])
        return ids[int(draw_tokens(logprobs[None], np.array(self.temperatures), noise)[0])]


@POLICIES.named("legal")
@dataclass(frozen=True)
class LegalPolicy(LegalMovePolicy):
    """Draw from the model's distribution over the legal moves, renormalized, at one temperature (default 1)."""

    name: ClassVar[str] = "legal"

    def advance(self, session: DecodingSession, encoding: Encoding, drafts: Sequence[Draft]) -> list[MoveChoice | None]:
        import chess

        choices: list[MoveChoice | None] = []
        for draft, distribution in zip(
            drafts, compute_distributions(session, encoding, [d.turn for d in drafts]), strict=True
        ):
            move = chess.Move.from_uci(distribution.choose(self.temperatures[0], *draft.turn.key, 0))
            choices.append(MoveChoice(move, legal_mass=distribution.legal_mass))
        return choices


def check_policy(text: str, head: str) -> None:
    """Raise BadInputError for the policy `value` and a model whose head has other outputs."""
    if text.partition(":")[0] == "value" and head not in ("action-value", "state-value"):
        raise make_no_values_error(head)


def make_no_values_error(head: str) -> BadInputError:
    """Return the error for a model that predicts no values."""
    return BadInputError(
        f"the policy value needs a model of values; this one has the head {head}", "give --policy legal"
    )


@POLICIES.named("value")
@dataclass(frozen=True)
class ValuePolicy(LegalMovePolicy):
    """Draw a legal move from the softmax of expected returns / temperature; 0, the default, takes the best move.

    The return of a move that allows a draw claim by repetition is 0.5.
    """

    name: ClassVar[str] = "value"
    default_temperature: ClassVar[float] = 0.0

    def advance(self, session: DecodingSession, encoding: Encoding, drafts: Sequence[Draft]) -> list[MoveChoice | None]:
        from chessreg.models.decoding.session import ValueSession
        from chessreg.models.decoding.values import assign_repetition_values

        if not isinstance(session, ValueSession):
            raise make_no_values_error(session.model.head)
        choices: list[MoveChoice | None] = []
        for draft in drafts:
            values = session.values(draft.row)
            returns = assign_repetition_values(draft.turn.board, values)
            noise = np.array([uniform(*draft.turn.key, 0)])
            place = int(draw_tokens(returns[None], np.array(self.temperatures), noise)[0])
            choices.append(MoveChoice(values.moves[place], text=values.moves[place].uci()))
        return choices


def compute_distributions(
    session: DecodingSession, encoding: Encoding, turns: Sequence[ModelTurn]
) -> list[MoveDistribution]:
    """Return the model's distribution over the legal moves of each turn, whose prompts are in the session.

    For a prompt that does not fit, the newest tokens count.
    """
    from chessreg.models.decoding.legal import MoveDistribution, score_legal_moves

    fitting = [turn for turn in turns if turn.prompt is None]
    long_turns = [turn for turn in turns if turn.prompt is not None]
    logprobs_by_turn: dict[int, dict[str, float]] = {}
    if fitting:
        rows = [turn.row for turn in fitting]
        logprobs = score_legal_moves(session, [turn.board for turn in fitting], encoding, rows)
        logprobs_by_turn.update(zip(rows, logprobs, strict=True))
    if long_turns:
        scratch = open_newest_session(session, encoding, [turn.prompt or () for turn in long_turns])
        logprobs = score_legal_moves(scratch, [turn.board for turn in long_turns], encoding)
        logprobs_by_turn.update(zip((turn.row for turn in long_turns), logprobs, strict=True))
    return [MoveDistribution(logprobs_by_turn[turn.row]) for turn in turns]
