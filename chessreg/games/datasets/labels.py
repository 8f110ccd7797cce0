"""Labels: named functions from positions to classes, which probes predict.

Boards are int8 [positions, 64], squares a1, b1 … h8 (rank * 8 + file), P=1 N=2 B=3 R=4 Q=5 K=6, negative for Black.
Threat, legal-move and pin are for the side to move. At dots, where White is to move, they equal the author's labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal

import chess
import numpy as np

from chessreg.errors import BadInputError
from chessreg.games.boards import attacks
from chessreg.games.boards.moves import compute_boards_after, hash_positions
from chessreg.named import NameRegistry

if TYPE_CHECKING:
    from chessreg.games.datasets.dataset import Games
    from chessreg.games.datasets.positions import Positions

PREVIOUS_PLIES = 25  # as in Karvonen's train_test_chess.py
BATCH_GAMES = 2000
BATCH_POSITIONS = 100_000


class GamePositions:
    """Positions to label, with access to the games around them."""

    def __init__(
        self,
        packed_games: Sequence[bytes],
        game: np.ndarray,
        ply: np.ndarray,
        number: np.ndarray,
        texts: Callable[[], Sequence[str]],
    ) -> None:
        """Select the positions after `ply` int [n] plies of the games `packed[game]`, `game` int [n].

        `number` int [games] has the games' rows in the dataset; `texts` returns their texts if a label needs them.
        """
        self.texts, self.ply, self.item = texts, ply.astype(np.int64), number[game]
        self._boards, offsets = compute_boards_after(packed_games)
        self.at = offsets[game] + self.ply

    def __len__(self) -> int:
        return len(self.ply)

    @cached_property
    def boards(self) -> np.ndarray:
        """The boards in the package's piece codes (`chessreg.games.boards`), int8 [n, 64]."""
        return self._boards[self.at]

    @property
    def white(self) -> np.ndarray:
        """Whether White is to move, bool [n]."""
        return self.ply % 2 == 0

    @property
    def hashes(self) -> np.ndarray:
        """uint64 [n], equal for equal pieces and side to move."""
        return hash_positions(self.boards, self.ply)

    @cached_property
    def targets(self) -> np.ndarray:
        """Bit boards uint64 [n] of the target squares of legal moves."""
        from chessreg.games.datasets.reader import find_move_targets

        return find_move_targets(self.texts())[self.at]

    def read_earlier_boards(self, plies: int) -> np.ndarray:
        """Return the boards `plies` plies earlier, int8 [n, 64]; empty boards before the start of the game."""
        has_board = self.ply >= plies
        return np.where(has_board[:, None], self._boards[np.where(has_board, self.at - plies, self.at)], np.int8(0))


class DatasetPositions(GamePositions):
    """Positions of a dataset of positions, whose games are unknown."""

    def __init__(self, positions: Positions, places: np.ndarray) -> None:
        """Select the positions at rows `places`, int64 [n]."""
        table = positions.take(places, ["fen", "ply"])
        self.fens, self.ply = table["fen"].to_pylist(), table["ply"].to_numpy().astype(np.int64)
        self.item, self.at = places, np.arange(len(places))
        self._boards = read_fen_boards(self.fens)

    @cached_property
    def targets(self) -> np.ndarray:
        bits = np.zeros(len(self), np.uint64)
        for row, fen in enumerate(self.fens):
            for move in chess.Board(fen).legal_moves:
                bits[row] |= np.uint64(1 << move.to_square)
        return bits

    def read_earlier_boards(self, plies: int) -> np.ndarray:
        raise BadInputError(f"a dataset of positions has no boards {plies} plies earlier", "give a cache of games")


def read_fen_boards(fens: Sequence[str]) -> np.ndarray:
    """Return the boards of FENs, int8 [n, 64]."""
    squares = "".join(fen.partition(" ")[0].translate(_SQUARES_OF_FEN) for fen in fens).encode()
    values = _VALUES[np.frombuffer(squares, np.uint8)].reshape(-1, 8, 8)
    return values[:, ::-1].reshape(-1, 64)  # a FEN begins with the eighth rank


_SQUARES_OF_FEN = str.maketrans({"/": ""} | {str(count): "." * count for count in range(1, 9)})
_VALUES = np.zeros(128, np.int8)
_VALUES[np.frombuffer(b"kqrbnp.PNBRQK", np.uint8)] = np.arange(-6, 7)


@dataclass(frozen=True)
class Label:
    """A label of `squares` squares: 64, or 1 for the whole position.

    `compute` maps positions to classes int8 [positions, squares], 0..len(classes)-1. It is None for labels of the game:
    skill (classes by rating) and rating (a number, without classes).
    """

    name: str
    classes: tuple[str, ...]
    compute: Callable[[GamePositions], np.ndarray] | None
    squares: int = 64
    source: Literal["position", "skill", "rating"] = "position"
    about: str = ""


LABELS: NameRegistry[Label] = NameRegistry("label")


def register_label(label: Label) -> None:
    """Register a label under its name. Raises ValueError if the name is taken."""
    LABELS[label.name] = label


SHUFFLED_SUFFIX = "-shuffled"
"""Suffix of a label whose classes were shuffled before a probe was fitted; `skill-shuffled` is computed
like `skill`."""


def get_label(name: str) -> Label:
    """Return the label with this name, or the original of a shuffled label. Raises NotFoundError."""
    return LABELS[name.removesuffix(SHUFFLED_SUFFIX)]


LABEL_ALIASES = {"joint": "piece"}
"""The papers' names of labels that have another name in chessreg: Davis's joint label of color and type."""


def iterate_positions(
    items: Games | Positions, item: np.ndarray, ply: np.ndarray | None = None
) -> Iterator[tuple[np.ndarray, GamePositions]]:
    """Yield (indices among the n, positions) in batches: the positions after `ply` int [n] plies of the games at `item`
    int [n]; for a dataset of positions, those at rows `item`."""
    if items.content == "positions":
        for start in range(0, len(item), BATCH_POSITIONS):
            rows = np.arange(start, min(start + BATCH_POSITIONS, len(item)))
            yield rows, DatasetPositions(items, item[rows])
        return
    games, ply = items, np.asarray(ply)
    places, game_indices = np.unique(item, return_inverse=True)
    order = np.argsort(game_indices, kind="stable")
    for start in range(0, len(places), BATCH_GAMES):
        chunk = places[start : start + BATCH_GAMES]
        low, high = np.searchsorted(game_indices, (start, start + len(chunk)), sorter=order)
        rows = np.sort(order[low:high])
        yield (
            rows,
            GamePositions(
                games.moves(chunk), game_indices[rows] - start, ply[rows], chunk, partial(games.texts, chunk)
            ),
        )


def classify_pieces(boards: np.ndarray) -> np.ndarray:
    """Return the piece on each square in absolute colors, int8: 0 black king … 6 empty … 12 white king
    (Karvonen 3.1)."""
    return boards.astype(np.int8, copy=False) + np.int8(6)


def classify_colors(boards: np.ndarray) -> np.ndarray:
    """Return 0 for a black piece, 1 for an empty square, 2 for a white piece."""
    return np.sign(boards) + np.int8(1)


def classify_piece_types(boards: np.ndarray) -> np.ndarray:
    """Return 0 pawn, 1 knight, 2 bishop, 3 rook, 4 queen, 5 king of either color, 6 empty: Davis's order (4.1)."""
    return ((np.abs(boards) + np.int8(6)) % np.int8(7)).astype(np.int8)


def classify_threats(positions: GamePositions) -> np.ndarray:
    """Return 1 for squares attacked by the side that is not to move."""
    return attacks.unpack_bits(attacks.find_attacked_squares(positions.boards, ~positions.white)).astype(np.int8)


def classify_legal_targets(positions: GamePositions) -> np.ndarray:
    """Return 1 for the target squares of legal moves."""
    return attacks.unpack_bits(positions.targets).astype(np.int8)


def classify_pins(positions: GamePositions) -> np.ndarray:
    """Return whether a piece of the side to move is pinned to its king, int8 [n, 1]."""
    return (attacks.find_pinned_pieces(positions.boards, positions.white) != 0).astype(np.int8)[:, None]


def classify_previous_pieces(positions: GamePositions) -> np.ndarray:
    """Return the classes of `piece` 25 plies earlier; empty before the start of the game."""
    return classify_pieces(positions.read_earlier_boards(PREVIOUS_PLIES))


def draw_random_classes(positions: GamePositions) -> np.ndarray:
    """Return one of three meaningless classes for each square, int8 [positions, 64].

    They are a function of game, ply and square, which the position does not determine.
    """
    keys = positions.item.astype(np.uint64) << np.uint64(32) | positions.ply.astype(np.uint64)
    ramp = np.arange(64, dtype=np.uint64)[None] * np.uint64(0x9E3779B97F4A7C15)
    values = (keys[:, None] + np.uint64(1)) * np.uint64(0xD1342543DE82EF95) ^ ramp
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # SplitMix64's finaliser
        values = (values ^ values >> np.uint64(shift)) * np.uint64(factor)
    return ((values >> np.uint64(33)) % np.uint64(3)).astype(np.int8)


PIECE_CLASSES = tuple("kqrbnp.PNBRQK")
NO_YES = ("no", "yes")

register_label(
    Label("piece", PIECE_CLASSES, lambda positions: classify_pieces(positions.boards), about="the piece on each square")
)
register_label(
    Label(
        "color",
        ("black", "empty", "white"),
        lambda positions: classify_colors(positions.boards),
        about="whose piece is on each square",
    )
)
register_label(
    Label(
        "type",
        tuple("PNBRQK."),
        lambda positions: classify_piece_types(positions.boards),
        about="the type of piece on each square",
    )
)
register_label(Label("threat", NO_YES, classify_threats, about="squares that the side not to move attacks"))
register_label(Label("legal-move", NO_YES, classify_legal_targets, about="squares that a legal move goes to"))
register_label(Label("pin", NO_YES, classify_pins, squares=1, about="whether the side to move has a pinned piece"))
register_label(
    Label("previous-move", PIECE_CLASSES, classify_previous_pieces, about="the piece on each square 25 plies earlier")
)
register_label(Label("random", ("0", "1", "2"), draw_random_classes, about="classes without meaning: a control"))
register_label(Label("skill", (), None, squares=1, source="skill", about="the class of a player's rating"))
register_label(Label("rating", (), None, squares=1, source="rating", about="a player's rating, by regression"))


# -- boards as text ------------------------------------------------------------

_CHANGE = re.compile(r"([a-h][1-8])=([pnbrqkPNBRQK.])")


def parse_board_changes(text: str) -> list[tuple[int, str]]:
    """Return (square, new piece or `.`) of each change, ordered by square. Raises BadInputError for an invalid change.

    >>> parse_board_changes("d7=p d5=.")
    [(35, '.'), (51, 'p')]
    """
    changes: dict[int, str] = {}
    for word in text.replace(",", " ").split():
        match = _CHANGE.fullmatch(word)
        if match is None:
            raise BadInputError(f"{word[:60]!r} is not a change of a board", "write d5=. d7=p e4=P: square=piece")
        square = chess.parse_square(match[1])
        if square in changes:
            raise BadInputError(f"--board names {match[1]} twice")
        changes[square] = match[2]
    return sorted(changes.items())


def normalize_board_changes(text: str) -> str:
    """Return the changes in canonical form.

    >>> normalize_board_changes("d7=p, d5=.")
    'd5=. d7=p'
    """
    return " ".join(f"{chess.square_name(square)}={piece}" for square, piece in parse_board_changes(text))
