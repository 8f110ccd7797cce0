"""Cases of edits that read the next token: a prefix of a game, the edit's target board, and a later board.

Davis 2026, section 3.6, and its code. The clean model's most probable token names a square. The target is the original
board without the piece on it. A case without such a piece is recorded with the reason. The later board is of the same
game, a few plies later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import chess
import numpy as np

from chessreg.encodings import Encoding
from chessreg.errors import BadInputError
from chessreg.experiments.edit.states import State, build_state_after, build_states
from chessreg.games.boards.moves import unpack_moves
from chessreg.games.datasets.labels import parse_board_changes
from chessreg.steering.directions import EMPTY, Change, classify_piece

if TYPE_CHECKING:
    from chessreg.experiments.edit.spec import NextTokenEditSpec
    from chessreg.games.datasets.dataset import Games


@dataclass(frozen=True)
class GamePrefix:
    """A state, a later board of its game, and the tokens that lead from the state to that board. A state that is a
    single position has neither: `later` is None and `later_prompt` is empty."""

    state: State
    later: chess.Board | None = None
    later_prompt: tuple[int, ...] = ()


@dataclass(frozen=True)
class Case:
    """A prefix with the target board of its edit, and the changes from the original board to it."""

    prefix: GamePrefix
    target: chess.Board
    changes: tuple[Change, ...]
    square: int | None = None  # of the removed piece

    @property
    def state(self) -> State:
        return self.prefix.state

    @property
    def piece(self) -> chess.Piece | None:
        """The piece on `square`."""
        return None if self.square is None else self.state.board.piece_at(self.square)

    @property
    def boards(self) -> tuple[chess.Board, chess.Board, chess.Board | None]:
        """The original, the target and the later board."""
        return self.state.board, self.target, self.prefix.later


def build_prefixes(
    spec: NextTokenEditSpec, encoding: Encoding, games: Games, places: np.ndarray, units: Sequence[int]
) -> list[GamePrefix]:
    """Return the prefixes of these units. Unit u is prefix u % n of the game at row `places[u // n]`, where n is the
    number of `spec.prefixes`. A shorter game has fewer prefixes."""
    per_game = spec.states_per_game
    by_game: dict[int, list[int]] = {}
    for unit in units:
        by_game.setdefault(unit // per_game, []).append(unit)
    all_prefixes: list[GamePrefix] = []
    for number, game_units in by_game.items():
        turns = GameTurns.from_game(encoding, games, int(places[number]))
        if spec.prefixes:
            unit_plies = [(unit, spec.prefixes[unit % per_game]) for unit in game_units]
            prefixes = [
                State(u, turns.item, ply, turns.prompts[ply], turns.boards[ply])
                for u, ply in unit_plies
                if turns.has(ply)
            ]
        else:
            prefixes = build_states(spec, encoding, games, places, game_units)
        all_prefixes += [
            GamePrefix(state, *turns.continue_from(state, spec.future, spec.future_unit)) for state in prefixes
        ]
    return all_prefixes


@dataclass(frozen=True)
class GameTurns:
    """The boards of one game, and its prompts: plies played → the tokens after which the next move is written."""

    item: int
    prompts: dict[int, tuple[int, ...]]
    boards: list[chess.Board]
    tokens: tuple[int, ...]
    """The tokens up to the last prompt, of a history encoding; otherwise empty."""
    plies_at: tuple[int, ...]
    """Plies played when each token has been read."""

    @classmethod
    def from_game(cls, encoding: Encoding, games: Games, item: int) -> GameTurns:
        """Return the turns of the game at row `item` of `games`."""
        tokens = encoding.games(games, np.array([item]))
        sites = encoding.sites("turns", tokens)
        prompts = {
            ply: tuple(tokens.item(at)[: token + 1].tolist())
            for at, token, ply in zip(sites.item.tolist(), sites.token.tolist(), sites.ply.tolist(), strict=True)
        }
        boards = list(iterate_board_copies(unpack_moves(games.moves([item])[0])))
        if encoding.content == "position":
            return cls(item, prompts, boards, (), ())
        longest_prompt = max(prompts.values(), key=len)
        every = encoding.sites("all", tokens)
        return cls(item, prompts, boards, longest_prompt, tuple(every.ply[: len(longest_prompt)].tolist()))

    def has(self, ply: int) -> bool:
        """Return whether the game continued after `ply` plies, and its prompt there is known."""
        return ply < len(self.boards) - 1 and ply in self.prompts

    def continue_from(self, state: State, count: int, unit: str) -> tuple[chess.Board | None, tuple[int, ...]]:
        """Return the board `count` plies or tokens after a state, and the tokens up to it; nothing if the game has
        ended."""
        if unit == "tokens":
            end = len(state.prompt) + count
            return (self.boards[self.plies_at[end - 1]], self.tokens[:end]) if end <= len(self.tokens) else (None, ())
        ply = state.ply + count
        return (self.boards[ply], self.prompts[ply]) if ply in self.prompts and ply < len(self.boards) else (None, ())


def iterate_board_copies(moves: Sequence[chess.Move]) -> Iterator[chess.Board]:
    """Yield the board before the first move and after each move, without move stacks."""
    board = chess.Board()
    yield board.copy(stack=False)
    for move in moves:
        board.push(move)
        yield board.copy(stack=False)


def build_single_prefix(spec: NextTokenEditSpec, encoding: Encoding) -> GamePrefix:
    """Return the position of a run with --moves, and with --later also the later board."""
    state = build_state_after(spec.sans, encoding)
    single_state = State(state.unit, state.item, state.ply, state.prompt, state.board.copy(stack=False))
    if not spec.later:
        return GamePrefix(single_state)
    later = build_state_after((*spec.sans, *spec.later.split()), encoding)
    return GamePrefix(single_state, later.board.copy(stack=False), later.prompt)


def remove_favourite(prefix: GamePrefix, square: int) -> Case:
    """Return the case whose target lacks the piece on `square`, with no other change of the board."""
    target = prefix.state.board.copy(stack=False)
    label = classify_piece(target.remove_piece_at(square))
    return Case(prefix, target, ((square, label, EMPTY),), square)


def apply_board_changes(prefix: GamePrefix, text: str) -> Case:
    """Return the case whose target is described by a text such as `d5=. d7=p`.

    Raises BadInputError for a square that is already empty, for a text that changes nothing, and for a target without
    meaningful legal moves: without exactly one king of each color, with a pawn on rank 1 or 8, or with a king that
    could be captured.
    """
    target, changes = prefix.state.board.copy(stack=False), []
    for square, letter in parse_board_changes(text):
        name, before = chess.square_name(square), target.piece_at(square)
        after = None if letter == "." else chess.Piece.from_symbol(letter)
        if before is None and after is None:
            raise BadInputError(f"--board removes a piece from {name}, which is empty", f"the board is {target.fen()}")
        if before != after:
            target.set_piece_at(square, after)
            changes.append((square, classify_piece(before), classify_piece(after)))
    if not changes:
        raise BadInputError(f"--board {text} changes nothing", f"the board is {prefix.state.board.fen()}")
    for color, name in ((chess.WHITE, "white"), (chess.BLACK, "black")):
        if len(target.pieces(chess.KING, color)) != 1:
            letter = "K" if color else "k"
            raise BadInputError(f"--board does not leave exactly one {name} king", f"move the king: e1=. d1={letter}")
    if target.status() & chess.STATUS_INVALID_EP_SQUARE:
        target.ep_square = None  # the pawn that could be captured en passant is gone
    if target.status() & chess.STATUS_PAWNS_ON_BACKRANK:
        raise BadInputError("--board puts a pawn on rank 1 or 8")
    if target.was_into_check():
        side, other = ("White", "Black") if target.turn else ("Black", "White")
        raise BadInputError(f"--board leaves {other}'s king in check, and {side} is to move")
    return Case(prefix, target, tuple(changes))


def explain_case_skip(spec: NextTokenEditSpec, prefix: GamePrefix, square: int | None) -> str | None:
    """Return the reason to skip a case, given the square of the most probable token, or None to edit it.

    Reasons are `too short`, `no square`, `empty`, `king` and `no moves`. Davis's third rule is not available,
    so `--king` decides it and the reason is recorded.
    """
    board = prefix.state.board
    if prefix.later is None and not spec.moves:
        return "too short"
    if spec.board:
        return None
    if square is None:
        return "no square"
    if board.piece_at(square) is None:
        return "empty"
    if spec.king == "skip" and board.piece_type_at(square) == chess.KING:
        return "king"
    if spec.guard == "fixed" and not any(remove_favourite(prefix, square).target.legal_moves):
        return "no moves"
    return None
