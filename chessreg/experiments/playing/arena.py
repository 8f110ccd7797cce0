"""Many games at once: groups of games take turns at the model, and while one thinks the engines search for the others.

A group is a decoding session whose key-value cache lives from move to move; a game that ends leaves its row to the next
game. What is played does not depend on how games share batches: draws are keyed by game, ply and try.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chessreg.experiments.playing.game import PlayedGame, Rules
from chessreg.experiments.playing.policies import Policy, Turn
from chessreg.games.openings import Opening
from chessreg.games.tokenizers import Tokenizer

if TYPE_CHECKING:
    from chessreg.games.engines import Limit
    from chessreg.games.pool import EngineMove, EnginePool, Evaluation
    from chessreg.models.decoding import DecodingSession
    from chessreg.models.edits import Edit
    from chessreg.models.language_model import LanguageModel

TICK_SECONDS = 0.2  # how long a wait for engines may last before the caller hears of it
MEMORY = 0.8  # how slowly the arena changes its mind about who is slower, model or engines
SPARSE = 4  # rows are closed up once one in so many is empty: it copies the cache


@dataclass
class Group:
    """Games that take their turns together; game r has row r of the session, or nobody has."""

    session: DecodingSession
    games: list[PlayedGame | None]
    asked: dict[int, Future[EngineMove]] = field(default_factory=dict)  # row → the move that is awaited

    @property
    def busy(self) -> bool:
        return any(game is not None for game in self.games)


class Arena:
    """Plays games of one model under one set of rules against one pool of engines.

    `noise` begins every key of a draw; `opening_of` gives the opening of a unit; `adjudicate` is the limit under which
    games that stopped in play are evaluated (None: they are not). `tick` is called often and may raise to end it all.
    `engines_slow` hears whether the model waits for the engines, each time that changes: they then want every core.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        policy: Policy,
        rules: Rules,
        pool: EnginePool,
        opening_of: Callable[[int], Opening],
        *,
        noise: tuple[int | str, ...],
        edits: Sequence[Edit] = (),
        adjudicate: Limit | None = None,
        batch_games: int = 32,
        groups: int = 2,
        tick: Callable[[], None] = lambda: None,
        engines_slow: Callable[[bool], None] = lambda slow: None,
    ) -> None:
        self.model, self.tokenizer, self.policy, self.rules = model, tokenizer, policy, rules
        self.pool, self.opening_of, self.noise, self.edits = pool, opening_of, noise, list(edits)
        self.adjudicate, self.batch_games, self.group_count, self.tick = adjudicate, batch_games, groups, tick
        self.engines_slow, self.slow, self.waits = engines_slow, False, 0.5
        longest = max(policy.move_tokens, tokenizer.max_move_tokens)
        self.room = model.block_size - (longest - 1)  # a move's last token is never fed
        self.waiting: Iterator[int] = iter(())
        self.finished: deque[PlayedGame] = deque()
        self.judged: list[tuple[PlayedGame, Future[Evaluation]]] = []

    def play(self, units: Iterable[int]) -> Iterator[PlayedGame]:
        """Finished games, in the order in which they end."""
        units = list(units)
        self.waiting = iter(units)
        groups = [self._group(size) for size in shares(min(self.batch_games, len(units)), self.group_count)]
        while any(group.busy for group in groups):
            for group in groups:
                if group.busy:
                    self._visit(group)
                    self._judge(block=False)
                    yield from self._drain()
        while self.judged:
            self._judge(block=True)
            yield from self._drain()
        yield from self._drain()

    # -- one group ------------------------------------------------------------------------------------------------

    def _group(self, rows: int) -> Group:
        group = Group(self.model.session(rows, self.edits), [None] * rows)
        self._fill(group)
        return group

    def _visit(self, group: Group) -> None:
        """The engines' moves in, ended games out, new ones in, the model's moves, and the next questions out."""
        self._compare(group)
        while group.asked:
            _, missing = wait(group.asked.values(), timeout=TICK_SECONDS)
            self.tick()
            if not missing:
                break
        for row, answer in group.asked.items():
            game = group.games[row]
            assert game is not None
            game.push(answer.result().move)
        group.asked.clear()
        self._leave(group)
        self._fill(group)
        self._compact(group)
        self._model_moves(group)
        self._leave(group)
        self._fill(group)  # a group is busy as long as a game waits
        for row, game in enumerate(group.games):
            if game is not None and not game.model_to_move and row not in group.asked:
                self._ask(group, row, game)
        self.tick()

    def _compare(self, group: Group) -> None:
        """Notice whether the model has to wait for the engines, or they for the model."""
        late = any(not answer.done() for answer in group.asked.values())
        self.waits = MEMORY * self.waits + (1 - MEMORY) * late
        if self.slow != (self.waits > 0.5):
            self.slow = not self.slow
            self.engines_slow(self.slow)

    def _fill(self, group: Group) -> None:
        """Free rows to waiting games."""
        for row, game in enumerate(group.games):
            if game is None and (fresh := self._next_game()) is not None:
                group.games[row] = fresh
                if not fresh.model_to_move:
                    self._ask(group, row, fresh)

    def _next_game(self) -> PlayedGame | None:
        """The next game that waits. One whose opening ended it is finished as it is."""
        for unit in self.waiting:
            game = PlayedGame(unit, self.opening_of(unit), self.rules)
            if game.end is None:
                return game
            self.finished.append(game)
        return None

    def _ask(self, group: Group, row: int, game: PlayedGame) -> None:
        group.asked[row] = self.pool.submit(game.unit, game.board, key=(*self.noise, game.unit, game.ply))

    def _leave(self, group: Group) -> None:
        """Ended games give up their rows."""
        for row, game in enumerate(group.games):
            if game is None or game.end is None:
                continue
            group.games[row] = None
            if game.adjudicated and self.adjudicate is not None:
                self.judged.append((game, self.pool.analyse(game.judged_board(), self.adjudicate)))
            else:
                self.finished.append(game)

    def _compact(self, group: Group) -> None:
        """Close up rows for which no game waits. Only while no answer is awaited: answers name rows."""
        kept = [row for row, game in enumerate(group.games) if game is not None]
        empty = len(group.games) - len(kept)
        if kept and not group.asked and empty and SPARSE * empty >= len(group.games):
            group.session.select(kept)
            group.games = [group.games[row] for row in kept]

    def _model_moves(self, group: Group) -> None:
        """The model's turn in every game of the group that waits for it."""
        wanted: list[Any] = []
        turns = []
        for row, game in enumerate(group.games):
            tokens = self._context(game) if game is not None and game.model_to_move else None
            if game is None or tokens is None:
                wanted.append(group.session.tokens[row])
                continue
            long = len(tokens) > self.room
            wanted.append(group.session.tokens[row] if long else tokens)
            key = ("play", *self.noise, game.unit, game.ply)
            turns.append(Turn(row, game.board, key, tuple(tokens) if long else None))
        if not turns:
            return
        group.session.sync(wanted)
        for turn, choice in zip(turns, self.policy.choose(group.session, self.tokenizer, turns), strict=True):
            game = group.games[turn.row]
            assert game is not None
            game.take(choice)

    def _context(self, game: PlayedGame) -> list[int] | None:
        """What the model reads, ending where its move begins. None: it does not fit, and the game has ended."""
        tokens: list[int] = self.tokenizer.encode(self.tokenizer.prompt(game.sans)).tolist()
        if len(tokens) <= self.room or self.rules.context_full == "crop":
            return tokens
        game.fill_context()
        return None

    # -- the ends of games ----------------------------------------------------------------------------------------

    def _judge(self, block: bool) -> None:
        """Evaluations that have come in; with `block`, after waiting a little for one."""
        if block:
            wait([future for _, future in self.judged], timeout=TICK_SECONDS, return_when="FIRST_COMPLETED")
            self.tick()
        left = []
        for game, future in self.judged:
            if future.done():
                game.adjudication_cp = future.result().score_cp
                self.finished.append(game)
            else:
                left.append((game, future))
        self.judged = left

    def _drain(self) -> Iterator[PlayedGame]:
        while self.finished:
            game = self.finished.popleft()
            game.seconds = time.monotonic() - game.started
            yield game


def shares(games: int, groups: int) -> list[int]:
    """Games split as evenly as can be into at most so many groups.

    >>> shares(7, 2), shares(1, 2)
    ([4, 3], [1])
    """
    groups = max(1, min(groups, games))
    return [games // groups + (number < games % groups) for number in range(groups)]
