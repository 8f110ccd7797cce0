"""A board picture as pure data: the return value of an experiment kind's `board_views(row)`, drawn by every board view.

Squares are numbered a1 = 0, b1 = 1, … h8 = 63 (rank * 8 + file).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

import chess

from chessreg.errors import BadInputError

Mark = Literal["removed", "illegal", "wrong", "target", "from", "to", "check"]
MARKS: tuple[Mark, ...] = get_args(Mark)
Role = Literal["", "played", "best"]
ROLES: tuple[Role, ...] = get_args(Role)
EMPTY = "."


class Arrow(NamedTuple):
    """An arrow between two squares.

    `weight` 0..1 is how strongly it is drawn; `label` is its text in a text view. `role` is empty for a model's move,
    `played` for the move played, `best` for the best move. If weights of model's moves are shares, so is the weight of
    the move played; otherwise no weight is printed.
    """

    start: int
    end: int
    weight: float = 1.0
    label: str = ""
    role: Role = ""

    @classmethod
    def from_item(cls, item: Sequence[Any]) -> Arrow:
        """Return an Arrow from (start, end, weight, label, role) or (UCI move, weight, label, role); later fields are
        optional.

        Raises BadInputError for anything else.
        """
        try:
            if isinstance(item[0], str):
                move = chess.Move.from_uci(item[0])
                item = (move.from_square, move.to_square, *item[1:])
            weight = float(item[2]) if len(item) > 2 else 1.0
            role = ROLES[ROLES.index(item[4])] if len(item) > 4 else ""
            return cls(int(item[0]), int(item[1]), weight, str(item[3]) if len(item) > 3 else "", role)
        except (ValueError, TypeError, IndexError) as error:
            raise BadInputError(
                f"{item!r} is not an arrow", "(start, end, weight, label) or (move, weight, label)"
            ) from error


class ProbeReading(NamedTuple):
    """A probe's wrong prediction on a square: the name of the predicted class, and its probability 0..1."""

    name: str
    probability: float

    @property
    def words(self) -> str:
        """The prediction in words: `n 0.56`, or `empty 0.44`."""
        return f"{'empty' if self.name == EMPTY else self.name} {self.probability:.2f}"


@dataclass(frozen=True)
class BoardFrame:
    """One picture of a board.

    `squares` is 64 letters, a1 first: `PNBRQK` White, `pnbrqk` Black, `.` empty. `heat` maps squares to 0..1 (such as a
    probe's probability); `heat_label` names the number. Shading runs from the first value of `heat_range`
    (unshaded) to the second; if the first is higher, the shade shows doubt. `caption` has the lines below the board.
    `read` has a probe's wrong predictions. `evaluation` is an engine's, in centipawns from White's view; None if
    unknown. `position` is the whole FEN and `moves` the UCI moves from the initial position, if known. `ply` is the
    number of half-moves played; None if that is the frame's place among the frames of its row, or unknown.

    Raises BadInputError for invalid squares, marks or numbers.
    """

    title: str
    squares: str
    last_move: tuple[int, int] | None = None
    marks: Mapping[int, Mark] = field(default_factory=dict)
    heat: Mapping[int, float] | None = None
    heat_label: str = ""
    heat_range: tuple[float, float] = (0.0, 1.0)
    arrows: tuple[Arrow, ...] = ()
    caption: tuple[str, ...] = ()
    flipped: bool = False
    read: Mapping[int, ProbeReading] = field(default_factory=dict)
    evaluation: float | None = None
    position: str = ""
    moves: tuple[str, ...] = ()
    ply: int | None = None

    def __repr__(self) -> str:
        """Return the title and the eight ranks as letters."""
        ranks = ("".join(self.squares[square] for square in rank) for rank in self.ranks())
        return "\n".join([*filter(None, [self.title]), *ranks])

    def __post_init__(self) -> None:
        if len(self.squares) != 64 or not set(self.squares) <= set("PNBRQKpnbrqk" + EMPTY):
            raise BadInputError(f"a board has 64 letters of PNBRQKpnbrqk and '.', not {self.squares!r}")
        object.__setattr__(self, "arrows", tuple(Arrow.from_item(arrow) for arrow in self.arrows))
        named_squares = [*self.marks, *(self.heat or ()), *(self.last_move or ()), *self.read]
        named_squares += [square for arrow in self.arrows for square in (arrow.start, arrow.end)]
        if invalid_squares := [square for square in named_squares if not 0 <= square < 64]:
            raise BadInputError(f"square {invalid_squares[0]} does not exist: squares are 0 (a1) to 63 (h8)")
        if unknown := [mark for mark in self.marks.values() if mark not in MARKS]:
            raise BadInputError(f"the mark {unknown[0]!r} does not exist", f"one of {', '.join(MARKS)}")
        if wrong := [value for value in (self.heat or {}).values() if not 0.0 <= value <= 1.0]:
            raise BadInputError(f"heat must be from 0 to 1, not {wrong[0]}")
        if self.evaluation is not None and not math.isfinite(self.evaluation):
            raise BadInputError(f"an evaluation must be a number of centipawns, not {self.evaluation}")
        # read-only copies, because views keep the frame
        object.__setattr__(self, "marks", MappingProxyType(dict(self.marks)))
        object.__setattr__(self, "read", MappingProxyType({s: ProbeReading(*one) for s, one in self.read.items()}))
        if self.heat is not None:
            object.__setattr__(self, "heat", MappingProxyType(dict(self.heat)))

    @property
    def shares(self) -> bool:
        """Whether the arrows' weights are shares of a model's moves, which are worth printing."""
        return any(not arrow.role and arrow.weight < 1.0 for arrow in self.arrows)

    @classmethod
    def from_board(
        cls,
        board: chess.BaseBoard,
        title: str = "",
        *,
        last_move: chess.Move | None = None,
        marks: Mapping[int, Mark] | None = None,
        heat: Mapping[int, float] | Sequence[float] | None = None,
        heat_label: str = "",
        arrows: Iterable[Sequence[Any]] = (),
        caption: Iterable[str] = (),
        flipped: bool = False,
        evaluation: float | None = None,
    ) -> BoardFrame:
        """Return the frame of a position.

        The last move, a king in check, the FEN and the moves come from a `chess.Board` unless given. `heat` may be 64
        numbers in the order of squares.
        """
        all_marks: dict[int, Mark] = {}
        position, moves = "", tuple[str, ...]()
        if isinstance(board, chess.Board):
            position = board.fen()
            if board.move_stack and board.root().fen() == chess.STARTING_FEN:
                moves = tuple(move.uci() for move in board.move_stack)
            if last_move is None and board.move_stack:
                last_move = board.peek()
            king = board.king(board.turn)
            if king is not None and board.is_check():
                all_marks[king] = "check"
        all_marks.update(marks or {})
        if heat is not None and not isinstance(heat, Mapping):
            heat = {square: float(value) for square, value in enumerate(heat)}
        return cls(
            title=title,
            squares=get_board_letters(board),
            last_move=(last_move.from_square, last_move.to_square) if last_move else None,
            marks=all_marks,
            heat=heat,
            heat_label=heat_label,
            arrows=tuple(Arrow.from_item(arrow) for arrow in arrows),
            caption=tuple(caption),
            flipped=flipped,
            evaluation=evaluation,
            position=position,
            moves=moves,
        )

    @classmethod
    def from_fen(cls, fen: str, title: str = "") -> BoardFrame:
        """Return the frame of a FEN, or of its first field alone. Raises BadInputError for an invalid FEN."""
        try:
            board = chess.Board(fen) if " " in fen.strip() else chess.BaseBoard(fen.strip())
        except ValueError as error:
            raise BadInputError(f"{fen!r} is not a FEN: {error}") from error
        return cls.from_board(board, title)

    def with_marks(self, marks: Mapping[int, Mark], caption: Iterable[str] = ()) -> BoardFrame:
        """Return this frame with additional marks and caption lines."""
        return replace(self, marks={**self.marks, **marks}, caption=(*self.caption, *caption))

    def base_board(self) -> chess.BaseBoard:
        """Return the pieces as a `chess.BaseBoard`; the position need not be legal."""
        board = chess.BaseBoard(None)
        for square, letter in enumerate(self.squares):
            if letter != EMPTY:
                board.set_piece_at(square, chess.Piece.from_symbol(letter))
        return board

    @property
    def fen(self) -> str:
        """The piece placement, as in the first field of a FEN."""
        return self.base_board().board_fen()

    def shade(self, square: int) -> float | None:
        """Return the depth of the heat's shade on a square, 0..1; None if the square has no heat."""
        low, high = self.heat_range
        value = None if self.heat is None else self.heat.get(square)
        return None if value is None else min(1.0, max(0.0, (value - low) / (high - low if high != low else 1.0)))

    @property
    def doubts(self) -> bool:
        """Whether the shade grows as the heat decreases."""
        return self.heat_range[0] > self.heat_range[1]

    @property
    def heat_words(self) -> str:
        """A description of the shading."""
        return f"{self.heat_label}, shaded if low" if self.doubts else self.heat_label

    @property
    def squares_right(self) -> int:
        """The number of the 64 squares that are not marked `wrong`."""
        return 64 - sum(mark == "wrong" for mark in self.marks.values())

    @property
    def whole_fen(self) -> str:
        """The FEN; White is to move if the side to move is unknown."""
        return self.position or f"{self.fen} w - - 0 1"

    @property
    def pgn(self) -> str:
        """The game that leads to the position as PGN; without known moves, the position alone."""
        import chess.pgn

        board = chess.Board() if self.moves else chess.Board(self.whole_fen)
        for move in self.moves:
            board.push_uci(move)
        return f"{chess.pgn.Game.from_board(board)}\n"

    @property
    def lichess(self) -> str:
        """The URL of Lichess's analysis of the position, seen from the same side."""
        side = "black" if self.flipped else "white"
        return f"https://lichess.org/analysis/{self.whole_fen.replace(' ', '_')}?color={side}"

    def ranks(self) -> list[list[int]]:
        """Return the squares in drawing order: eight rows from the top, each from the left."""
        rows = [list(range(rank * 8, rank * 8 + 8)) for rank in range(8)]
        return [row[::-1] for row in rows] if self.flipped else rows[::-1]


def list_plies(views: Sequence[BoardFrame]) -> list[int]:
    """Return the ply of each frame; frames of an unknown ply are counted from 0."""
    return [place if view.ply is None else view.ply for place, view in enumerate(views)]


def find_ply(views: Sequence[BoardFrame], ply: int, reference: str) -> list[BoardFrame]:
    """Return the frames at a ply; -1 is the last frame, -2 the one before it.

    Several frames have the same ply if a probe reads several tokens of a move. Raises BadInputError if there is none.
    """
    plies = list_plies(views)
    views_at_ply = [view for view, view_ply in zip(views, plies, strict=True) if view_ply == ply]
    if -len(views) <= ply < 0:
        views_at_ply = [views[ply]]
    if not views_at_ply:
        raise BadInputError(f"{reference} has no board at ply {ply}", f"its boards are at {format_plies(plies)}")
    return views_at_ply


def format_plies(plies: Sequence[int]) -> str:
    """Return the plies in words.

    >>> format_plies(range(9)), format_plies([0, 2, 4, 6, 8]), format_plies([3, 4, 4, 9])
    ('plies 0 to 8', 'plies 0, 2, 4 … 8', 'plies 3, 4, 9')
    """
    listed_plies = sorted(set(plies))
    steps = {later - ply for ply, later in pairwise(listed_plies)}
    if len(listed_plies) == 1:
        return f"ply {listed_plies[0]}"
    if steps == {1}:
        return f"plies {listed_plies[0]} to {listed_plies[-1]}"
    if len(steps) == 1 and len(listed_plies) > 4:
        return f"plies {', '.join(map(str, listed_plies[:3]))} … {listed_plies[-1]}"
    return f"plies {', '.join(map(str, listed_plies))}"


def get_board_letters(board: chess.BaseBoard) -> str:
    """Return the 64 letters of a position, a1 first."""
    pieces = board.piece_map()
    return "".join(pieces[square].symbol() if square in pieces else EMPTY for square in range(64))


def move_arrows(board: chess.Board, moves: Sequence[chess.Move | None]) -> list[Arrow]:
    """Return one arrow per distinct move, weighted by its share of `moves` and labelled in SAN. None counts
    as no move."""
    count: dict[chess.Move, int] = {}
    for move in moves:
        if move:
            count[move] = count.get(move, 0) + 1
    return [Arrow(m.from_square, m.to_square, n / len(moves), board.san(m)) for m, n in count.items()]


def list_game_views(
    moves: Sequence[str],
    title: str = "",
    *,
    fen: str | None = None,
    tries: Mapping[int, Sequence[str]] | None = None,
    flipped: bool = False,
) -> list[BoardFrame]:
    """Return a frame for the start and one after every ply of a game (UCI moves).

    `tries` maps a ply to its illegal tries, which are listed in the caption. Tries at ply len(moves), of a turn without
    a legal move, are listed under the last frame. Raises BadInputError for an illegal move.
    """
    board = chess.Board(fen) if fen else chess.Board()
    views = [BoardFrame.from_board(board, title, caption=("start",), flipped=flipped)]
    for ply, text in enumerate(moves):
        number = f"{board.fullmove_number}{'.' if board.turn else '...'}"
        try:
            san = board.san_and_push(board.parse_uci(text))
        except ValueError as error:
            raise BadInputError(f"ply {ply}: {text} is not legal in {board.fen()}") from error
        caption = [f"{number} {san}"]
        if tries and tries.get(ply):
            caption.append(f"illegal first: {', '.join(tries[ply])}")
        views.append(BoardFrame.from_board(board, title, caption=caption, flipped=flipped))
    if tries and tries.get(len(moves)):
        views[-1] = views[-1].with_marks({}, [f"then only illegal: {', '.join(tries[len(moves)])}"])
    return views
