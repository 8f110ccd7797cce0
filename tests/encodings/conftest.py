"""Games that are hard to write, as SAN, as boards and as a dataset."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import pytest

from chessreg.encodings.move_tokens import MoveTokens, Spelling, iterate_boards_of_games, list_possible_moves
from chessreg.errors import BadInputError
from chessreg.games.boards.typed import play_sans
from chessreg.games.datasets.build import build_dataset
from chessreg.games.datasets.dataset import Games
from chessreg.models.importers.game_check import read_sample_games

GAMES = {
    "the start": "",
    "one ply": "e4",
    "en passant for both sides": "e4 a6 e5 d5 exd6 c5 b4 cxb4 c4 bxc3",
    "en passant that a pin forbids": "e4 e6 e5 Qe7 Nf3 d6 Be2 dxe5 O-O e4 Nc3 f5 Nd4 Qd6 Nb3 Qb6 d4",
    "castling short for both sides": "e4 e5 Nf3 Nc6 Bc4 Bc5 O-O Nf6 d3 O-O",
    "castling long for both sides": "d4 d5 Nc3 Nc6 Bf4 Bf5 Qd2 Qd7 O-O-O O-O-O",
    "a rook is captured before castling": "b3 g6 Bb2 h6 Bxh8 Nf6 Nf3 Bg7 g3 b6 Bg2 Ba6 O-O",
    "Davis's promotion": "e4 d5 exd5 e6 dxe6 Qg5 e7 Nf6 exf8=Q+ Kxf8",
    "three queens, long disambiguation": (
        "e4 e5 Nf3 Nc6 Nc3 Nf6 Bc4 Nxe4 Nxe4 d5 Bd3 dxe4 Bxe4 Bd6 d3 Ne7 Ng5 h6 Nf3 f5 Bxf5 Bxf5 Qe2 Nc6 O-O O-O "
        "Bd2 Bg4 Bc3 Bxf3 Qe3 Bd5 Bd2 Qh4 Qh3 Qxh3 gxh3 Rf3 h4 e4 dxe4 Bxe4 c3 Rh3 f3 Bc5+ Kg2 Rxh4 fxe4 Bd6 Rh1 "
        "Re8 Kf3 Rhxe4 Rag1 Kh7 h3 R4e6 h4 Rf6+ Kg4 Re4+ Kh3 Rf3+ Kg2 Rg3+ Kf2 Rd3 a4 Rxd2+ Kf3 Rf4+ Ke3 Rdf2 Rg3 "
        "Rxb2 Kd3 Rxa4 Rhg1 Bxg3 Rxg3 Rxh4 Re3 a5 Re4 Rxe4 Kxe4 a4 Kd3 a3 c4 a2 Kc3 a1=Q c5 g5 Kc4 g4 Kc3 g3 Kc4 "
        "h5 Kc3 h4 Kc4 h3 Kc3 g2 Kc4 h2 Kd5 h1=Q Ke6 g1=Q Kd7 Ne7 Kxc7 Qxc5+ Kd7 Qca7 Kxe7 b5+ Kd6 Q7a5 Ke7 b4 "
        "Kf6 b3 Kf7 Rc2 Kf8 b2 Kf7 Rc7+ Kf8 Rf7+ Kxf7 b1=Q Kf8 Kg6 Ke7 Kf5 Kd6 Qaa8 Kc5 Qa1h8 Kc4 Ke4 Kc5 Qbb7 "
        "Kd6 Ke3 Ke6 Qc3 Kd6 Qcc6+ Ke5 Qhd5#"
    ),
    "castling long for Black, under-promotion with mate": (
        "e4 e5 Qh5 Nc6 Qf5 Nf6 Qg5 Be7 Qxg7 Rg8 Qh6 d6 Bc4 Be6 Bxe6 fxe6 d3 Qd7 Nf3 Rg6 Qh4 O-O-O Ng5 Nxe4 dxe4 "
        "Bxg5 Qg4 Bxc1 Qh4 Bxb2 O-O Bxa1 Nc3 Bxc3 a4 d5 exd5 exd5 a5 Bxa5 Qh5 e4 Rd1 d4 c3 Bxc3 Qb5 d3 Rb1 Na5 "
        "Qxd7+ Rxd7 Rb5 d2 g4 Rxg4+ Kh1 d1=R#"
    ),
    "castling long for White, promotion to a knight": (
        "e4 Nc6 Nf3 Nf6 e5 Ne4 Bb5 e6 Nc3 f5 d4 d5 h4 a6 Bxc6+ bxc6 Ng5 h6 Qh5+ Kd7 Nf7 Qf6 exf6 Rg8 Ne5+ Kd8 f7 "
        "Rh8 Nxc6+ Kd7 Ne5+ Kd8 Bg5+ Be7 f8=N Rxf8 Bxe7+ Kxe7 Ng6+ Kd6 Nxf8 Bb7 Qf7 Nc5 O-O-O Ne4 Nxe4+ Kc6 Nc5 "
        "Kb5 Nxb7 Rb8 Nc5 e5 dxe5 Kxc5 Qxg7 d4 Qxh6 f4 f3 Kc4 c3 dxc3 bxc3 Kxc3 e6 Rb2 Qg7+"
    ),
}


def list_moves_in_san() -> list[str]:
    """Return every legal move in SAN on the boards of GAMES and of the bundled sample games."""
    own = itertools.chain.from_iterable(boards(name) for name in GAMES)
    positions = itertools.chain(own, iterate_boards_of_games(read_sample_games()))
    return sorted({board.san(move) for board in positions for move in board.legal_moves})


@functools.cache
def make_move_tokens(spelling: Spelling) -> MoveTokens:
    """Return an encoding of all moves in one spelling, with its tokens in a different order."""
    if spelling.notation == "san":
        texts = list_moves_in_san()
    else:
        written = (spelling.write_parts(*one, color) for color in chess.COLORS for one in list_possible_moves(color))
        texts = sorted({text for parts in written for text in parts})
    vocabulary = [*texts[::-1][:3], "<pad>", "<bos>", "<eos>", "<unk>", *texts[::-1][3:]]
    return MoveTokens(vocabulary, spelling, {"bos": "<bos>", "eos": "<eos>", "pad": "<pad>", "unk": "<unk>"})


class CharacterTable:
    """A vocabulary of characters, each one token."""

    def __init__(
        self, ids: Mapping[str, int], *, end: int, size: int, bos: int | None = None, pad: int | None = None
    ) -> None:
        self._ids, self.size, self.bos, self.end, self.pad = dict(ids), size, bos, end, pad
        self.digest = repr((sorted(self._ids.items()), bos, end, pad))
        self._characters = {number: character for character, number in ids.items()}

    @classmethod
    def byte_level(cls, offset: int, *, end: int, size: int, bos: int | None = None, pad: int | None = None) -> Any:
        """The single characters of byte-level BPE: printable ASCII c is ord(c) - 33 + offset, a space 220 + offset, a
        new line 198 + offset. Llama 3 has offset 0, GPT-NeoX 2."""
        ids = {chr(code): code - 33 + offset for code in range(33, 127)}
        return cls(ids | {" ": 220 + offset, "\n": 198 + offset}, end=end, size=size, bos=bos, pad=pad)

    def encode(self, text: str) -> list[int]:
        for place, character in enumerate(text):
            if character not in self._ids:
                raise BadInputError(f"character {character!r} at index {place} is not in the table of characters")
        return [self._ids[character] for character in text]

    encode_inside = encode

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._characters.get(number, "") for number in ids)

    def character(self, character: str) -> int | None:
        return self._ids.get(character)


@functools.cache
def boards(name: str) -> tuple[chess.Board, ...]:
    """The board after 0, 1, … plies of a game, each with its moves on the stack."""
    found = [chess.Board()]
    for san in GAMES[name].split():
        found.append(found[-1].copy())
        found[-1].push_san(san)
    return tuple(found)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Games:
    """The games that have moves, in order."""
    folder = tmp_path_factory.mktemp("encodings")
    path = folder / "games.pgn"
    written = []
    for sans in filter(None, GAMES.values()):
        game = chess.pgn.Game.from_board(play_sans(sans.split()))
        written.append(f"{game}\n\n")
    Path(path).write_text("".join(written))
    build_dataset([path], folder / "dataset")
    return Games(folder / "dataset")
