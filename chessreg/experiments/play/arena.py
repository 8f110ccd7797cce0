"""Many games at once in one decoding session: the model decodes some games while engines answer in the others.

Game r has row r of the session, whose key-value cache persists between moves; the row of an ended game goes to the next
game. Each forward pass extends every draft in progress, at any character or try, and then reads the answers
that engines have given meanwhile, so no game waits for another. The moves do not depend on this schedule, because draws
are keyed by game, ply and try.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from chessreg.experiments.matches import MatchRules, PlayedGame
from chessreg.games.boards.openings import Opening
from chessreg.games.engines.assist import ASSIST_LIMIT, ASSIST_LINES, Assist, is_consulted
from chessreg.models.decoding.policies import Draft, ModelTurn, Policy, begin_drafts
from chessreg.noise import Stream

if TYPE_CHECKING:
    from chessreg.games.engines.opponents import EngineSpec, Limit
    from chessreg.games.engines.pool import EnginePool, Evaluation
    from chessreg.models.decoding.session import DecodingSession
    from chessreg.models.edits import ResidualEdit
    from chessreg.models.language_model import LanguageModel

TICK_SECONDS = 0.2  # longest wait for engines before the caller's `tick` is called
WAIT_SMOOTHING = 0.8  # weight of the past in the estimate of which is slower, model or engines
COMPACT_RATIO = 4  # rows are compacted, which copies the cache, once one in this many is empty
ADMIT_RATIO = 4  # where engines are slower, prompts wait until one game in this many has one, to save forward passes


@dataclass(frozen=True)
class ModelPlayer:
    """The player under test: a model, the policy that chooses its moves, and the edits of its residual stream."""

    model: LanguageModel
    policy: Policy
    edits: Sequence[ResidualEdit] = ()


@dataclass(frozen=True)
class EngineRoles:
    """Tasks of the engine other than playing.

    It evaluates games that stopped in play under the limit `adjudicate`, and the position of drawn games before the
    model's last move under `judge_draws`; None leaves that evaluation out. `assist`: when it plays the model's move.
    """

    adjudicate: Limit | None = None
    judge_draws: Limit | None = None
    assist: Assist = "none"


class Arena:
    """Plays games of one model under one set of rules against one pool of engines.

    `noise` starts the key of every draw. `get_opening` returns the opening of a unit, and `get_opponent` its opponent
    if that is not the pool's. `tick` is called at least every `TICK_SECONDS` during waits and once per pass, with the
    started games that have not been yielded; it may raise to end them all. `engines_slow` is called with True when the
    model starts to wait for the engines, which then need every core, and with False when that ends.
    """

    def __init__(
        self,
        player: ModelPlayer,
        rules: MatchRules,
        pool: EnginePool,
        get_opening: Callable[[int], Opening],
        *,
        noise: tuple[int | str, ...],
        roles: EngineRoles = EngineRoles(),
        get_opponent: Callable[[int], EngineSpec] | None = None,
        batch_games: int = 32,
        tick: Callable[[Iterable[PlayedGame]], None] = lambda games: None,
        engines_slow: Callable[[bool], None] = lambda slow: None,
    ) -> None:
        model, policy = player.model, player.policy
        self.model, self.encoding, self.policy, self.rules = model, model.encoding, policy, rules
        self.pool, self.get_opening, self.noise, self.edits = pool, get_opening, noise, list(player.edits)
        self.roles, self.get_opponent, self.batch_games, self.tick = roles, get_opponent, batch_games, tick
        self.engines_slow, self.slow, self.wait_share = engines_slow, False, 0.5
        self.wait_s = self.work_s = 0.0  # seconds since the last prompts were read
        self.history = self.encoding.content == "history"  # a position cannot be cropped
        longest = max(policy.move_tokens if self.history else 0, self.encoding.max_move_tokens)
        self.room = model.block_size - (longest - 1)  # the last token of a move is never an input of the model
        self.remaining_units: Iterator[int] = iter(())
        self.session = self._open_session(0)
        self.games: list[PlayedGame | None] = []
        self.pending_answers: dict[
            int, Future[Any]
        ] = {}  # row → the move or the evaluated lines that an engine computes
        self.drafts: dict[int, Draft] = {}  # row → the model's move in progress
        self.finished_games: deque[PlayedGame] = deque()
        self.pending_evaluations: list[tuple[PlayedGame, Future[Evaluation]]] = []

    def _open_session(self, rows: int) -> DecodingSession:
        """Open a decoding session of the edited model with this number of empty rows."""
        from chessreg.models.decoding.session import open_decoding_session

        return open_decoding_session(self.model, rows, self.edits)

    def play(self, units: Iterable[int]) -> Iterator[PlayedGame]:
        """Yield finished games in the order in which they end."""
        units = list(units)
        self.remaining_units = iter(units)
        rows = min(self.batch_games, len(units))
        self.session, self.games = self._open_session(rows), [None] * rows
        self.pending_answers, self.drafts = {}, {}
        self._fill()
        while any(game is not None for game in self.games):
            self._run_round()
            self._judge(block=False)
            yield from self._drain()
        while self.pending_evaluations:
            self._judge(block=True)
            yield from self._drain()
        yield from self._drain()

    # -- one round: the engines' moves, one forward pass, new queries ------------------------------------------------

    def _run_round(self) -> None:
        """Apply the engines' answers, make one forward pass, and send new queries."""
        for row in [row for row, answer in self.pending_answers.items() if answer.done()]:
            game, answer = self._get_game(row), self.pending_answers.pop(row).result()
            if game.is_model_to_move:
                game.advise(answer)
            else:
                game.push(answer.move)
        self._replace_ended_games()
        self._compact()
        busy_rows = self.drafts.keys() | self.pending_answers.keys()
        ready_rows = [r for r, game in enumerate(self.games) if game and game.is_model_to_move and r not in busy_rows]
        if not self.drafts and ADMIT_RATIO * len(ready_rows) < len(ready_rows) + len(self.pending_answers):
            self._wait_for_engines()
            return
        start = time.perf_counter()
        is_few = ADMIT_RATIO * len(ready_rows) < sum(game is not None for game in self.games)
        if ready_rows and not (self.slow and self.drafts and is_few):
            self._admit(ready_rows)
        drafts = list(self.drafts.items())
        choices = self.policy.advance(self.session, self.encoding, [draft for _, draft in drafts])
        for (row, _), choice in zip(drafts, choices, strict=True):
            if choice is not None:
                del self.drafts[row]
                self._get_game(row).take(choice)
        self.work_s += time.perf_counter() - start
        self._replace_ended_games()
        self._tick()

    def _wait_for_engines(self) -> None:
        """Wait up to `TICK_SECONDS` for an engine's answer."""
        start = time.perf_counter()
        wait(self.pending_answers.values(), timeout=TICK_SECONDS, return_when="FIRST_COMPLETED")
        self.wait_s += time.perf_counter() - start
        self._tick()

    def _tick(self) -> None:
        """Call `tick` with the games in play, in evaluation and finished."""
        self.tick([*filter(None, self.games), *(game for game, _ in self.pending_evaluations), *self.finished_games])

    def _replace_ended_games(self) -> None:
        """Remove ended games, add new ones, and query the engines whose turn it is."""
        self._free_ended_rows()
        self._fill()
        for row, game in enumerate(self.games):
            if game is None or row in self.pending_answers or row in self.drafts:
                continue
            if not game.is_model_to_move:
                key = (*self.noise, game.unit, game.ply)
                other = {} if self.get_opponent is None else {"spec": self.get_opponent(game.unit)}
                self.pending_answers[row] = self.pool.submit(game.unit, game.board, key=key, **other)
            elif game.unaided_ply != game.ply and is_consulted(self.roles.assist, game.board):
                self.pending_answers[row] = self.pool.lines(game.board, ASSIST_LIMIT, ASSIST_LINES)

    def _get_game(self, row: int) -> PlayedGame:
        """Return the game of an occupied row."""
        game = self.games[row]
        assert game is not None
        return game

    def _admit(self, ready_rows: list[int]) -> None:
        """Read the prompts of the games in the session rows `ready_rows`, keep the other rows, and start a draft for
        the next move of each of these games."""
        self._update_engine_speed()
        row_tokens: list[Any] = list(self.session.tokens)
        turns = []
        for row in ready_rows:
            game = self._get_game(row)
            tokens = self._encode_context(game)
            if tokens is None:
                continue
            long = len(tokens) > self.room
            if not long:
                row_tokens[row] = tokens
            key = (Stream.PLAY, *self.noise, game.unit, game.ply)
            turns.append(ModelTurn(row, game.board, key, tuple(tokens) if long else None))
        self.session.set_rows(row_tokens)
        self.drafts.update((draft.row, draft) for draft in begin_drafts(self.session, turns))

    def _update_engine_speed(self) -> None:
        """Update the estimate of whether the model waits for the engines longer than it computes."""
        if self.wait_s + self.work_s:
            self.wait_share = WAIT_SMOOTHING * self.wait_share + (1 - WAIT_SMOOTHING) * (self.wait_s > self.work_s)
        self.wait_s = self.work_s = 0.0
        if self.slow != (self.wait_share > 0.5):
            self.slow = not self.slow
            self.engines_slow(self.slow)

    def _fill(self) -> None:
        """Assign free rows to waiting games."""
        for row, game in enumerate(self.games):
            if game is None:
                self.games[row] = self._start_next_game()

    def _start_next_game(self) -> PlayedGame | None:
        """Return the next waiting game. A game that its opening already ended goes to `finished_games`."""
        for unit in self.remaining_units:
            game = PlayedGame(unit, self.get_opening(unit), self.rules)
            if game.end is None:
                return game
            self.finished_games.append(game)
        return None

    def _free_ended_rows(self) -> None:
        """Free the rows of ended games, and start the evaluations that they need."""
        for row, game in enumerate(self.games):
            if game is None or game.end is None:
                continue
            self.games[row] = None
            last_choice = game.find_last_choice() if self.roles.judge_draws and game.end.result == "1/2-1/2" else None
            if game.is_adjudicated and self.roles.adjudicate is not None:
                self.pending_evaluations.append(
                    (game, self.pool.analyse(game.find_judged_board(), self.roles.adjudicate))
                )
            elif last_choice is not None and self.roles.judge_draws is not None:
                self.pending_evaluations.append((game, self.pool.analyse(last_choice, self.roles.judge_draws)))
            else:
                self.finished_games.append(game)

    def _compact(self) -> None:
        """Remove empty rows for which no game waits, unless the session can skip them."""
        if self.session.packable:
            return
        occupied_rows = [row for row, game in enumerate(self.games) if game is not None]
        empty = len(self.games) - len(occupied_rows)
        if not occupied_rows or not empty or COMPACT_RATIO * empty < len(self.games):
            return
        self.session.select(occupied_rows)
        self.games = [self.games[row] for row in occupied_rows]
        place = {row: new for new, row in enumerate(occupied_rows)}
        self.pending_answers = {place[row]: answer for row, answer in self.pending_answers.items()}
        self.drafts = {place[row]: replace(draft, row=place[row]) for row, draft in self.drafts.items()}

    def _encode_context(self, game: PlayedGame) -> list[int] | None:
        """Return the tokens of the model's context up to its next move. If they do not fit, end the game and return
        None."""
        tokens = list(self.encoding.prompt(game.sans if self.history else game.board))
        if len(tokens) <= self.room or (self.history and self.rules.context_full == "crop"):
            return tokens
        game.fill_context()
        return None

    # -- ends of games ----------------------------------------------------------------------------------------------

    def _judge(self, block: bool) -> None:
        """Store finished evaluations in their games; `block` waits up to `TICK_SECONDS` for one first."""
        if block:
            wait(
                [future for _, future in self.pending_evaluations], timeout=TICK_SECONDS, return_when="FIRST_COMPLETED"
            )
            self._tick()
        waiting_evaluations = []
        for game, future in self.pending_evaluations:
            if future.done():
                name = "adjudication_cp" if game.is_adjudicated else "draw_cp"
                setattr(game, name, future.result().score_cp)
                self.finished_games.append(game)
            else:
                waiting_evaluations.append((game, future))
        self.pending_evaluations = waiting_evaluations

    def _drain(self) -> Iterator[PlayedGame]:
        """Yield the finished games, with their duration in seconds."""
        while self.finished_games:
            game = self.finished_games.popleft()
            game.seconds = time.monotonic() - game.start_time
            yield game
