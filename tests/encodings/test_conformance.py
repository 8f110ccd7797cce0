"""Requirements on every encoding, on real games: promotions, castling, en passant, checks, long disambiguation."""

from __future__ import annotations

import itertools
import re
from typing import Any, get_args

import chess
import numpy as np
import pytest

from chessreg.encodings import Alignment, Encoding, Tokens, get_encoding, list_encodings, register_encoding
from chessreg.encodings.move_tokens import MoveTokens, Spelling, list_possible_moves
from chessreg.encodings.prompts import PromptEncoding, PromptSettings
from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.datasets.dataset import Games
from tests.encodings.conftest import GAMES, CharacterTable, boards, make_move_tokens
from tests.quick import quick_only

ALIGNMENTS = get_args(Alignment)
SOME_GAMES = quick_only(
    ("en passant for both sides", "castling long for both sides", "Davis's promotion"), GAMES
)  # the long ones take most of the time


PROMPTS = {
    "prompt": PromptSettings(),
    "prompt with legal moves": PromptSettings("junkin-1", last_separator=True),
    "prompt in SAN": PromptSettings("junkin-3", notation="san"),
    "prompt with slashes": PromptSettings("junkin-2", layout="flattened_with_slashes"),
}


MOVES = {
    "token per move": Spelling("{from}{to}"),
    "piece and squares": Spelling("{color}{piece} {from} {to}", " ({1})"),
    "moves in SAN": Spelling("san"),
}


@pytest.fixture(params=[*list_encodings(), *PROMPTS, *MOVES])
def one(request: pytest.FixtureRequest) -> Encoding:
    if request.param in MOVES:
        return make_move_tokens(MOVES[request.param])
    if request.param in PROMPTS:
        return PromptEncoding(CharacterTable.byte_level(0, bos=256, end=257, size=258), PROMPTS[request.param])
    return get_encoding(request.param)


def whole(one: Encoding, name: str) -> list[tuple[int, ...]]:
    """A game as the encoding's items: one sequence, or one for each board."""
    if one.content == "history":
        sans = GAMES[name].split()
        board, prompt = boards(name)[-2], one.prompt(sans[:-1])
        answer = one.answer(board, board.parse_san(sans[-1]))
        return [prompt + (answer[:-1] if answer[-1] in one.stop_ids else answer)]
    return [one.prompt(board) for board in boards(name)]


def test_it_fulfils_the_protocol(one: Encoding) -> None:
    assert isinstance(one, Encoding)
    assert len(one.vocabulary) == one.size == len(set(one.vocabulary))
    assert {"all", "last", "turns", "white-turns", "black-turns"} <= set(one.site_names)
    assert one.answer_size == one.size or one.content == "position"
    assert one.stop_ids | one.boundary_ids <= set(range(one.size))


@pytest.mark.parametrize("name", GAMES)
def test_a_text_comes_back_from_its_ids(one: Encoding, name: str) -> None:
    """The ids of their text have it as well, with any integer dtype."""
    for board in boards(name)[:: max(1, len(GAMES[name]) // 50)]:
        ids = one.prompt(board)
        text = one.decode(ids)
        assert one.encode(text).tolist() == list(ids)
        assert one.decode(np.array(ids, np.uint16)) == text
        assert min(ids) >= 0
        assert max(ids) < one.size


@pytest.mark.parametrize("name", GAMES)
def test_a_prompt_of_moves_is_the_prompt_of_their_board(one: Encoding, name: str) -> None:
    sans = GAMES[name].split()
    for plies in (0, 1, 2, len(sans)):
        assert one.prompt(sans[:plies]) == one.prompt(boards(name)[min(plies, len(sans))])


@pytest.mark.parametrize("language", [name for name in list_encodings() if get_encoding(name).content == "history"])
@pytest.mark.parametrize("name", [name for name in GAMES if name != "the start"])
def test_prompt_and_answer_are_the_longer_game(language: str, name: str) -> None:
    one = get_encoding(language)
    for board, after in itertools.pairwise(boards(name)):
        longer = one.prompt(board) + one.answer(board, after.peek())
        assert one.prompt(after)[: len(longer)] == longer


@pytest.mark.parametrize("name", SOME_GAMES)
def test_answers_are_the_legal_moves_and_are_read_as_them(one: Encoding, name: str) -> None:
    for board in boards(name)[:: max(1, len(GAMES[name]) // 80)]:
        answers, accepted = one.answers(board), set(one.accepted_texts(board))
        assert list(answers) == list(board.legal_moves)
        assert len(set(answers.values())) == len(answers)
        for move, ids in answers.items():
            assert one.answer(board, move) == ids
            assert all(0 <= number < one.answer_size for number in ids)
            assert len(ids) <= one.max_move_tokens
            assert one.parse(ids, board) == move
            assert one.parse(one.answer_text(ids), board) == move
            assert one.is_complete(ids, board)
            assert not any(one.is_complete(ids[:cut], board) for cut in range(len(ids)))
            assert one.answer_text(ids) in accepted


@pytest.mark.parametrize("name", GAMES)
def test_accepted_texts_are_sorted_and_all_read_as_legal(one: Encoding, name: str) -> None:
    board = boards(name)[-1]
    accepted = one.accepted_texts(board)
    assert list(accepted) == sorted(set(accepted))
    assert [one.answer_text(ids) for ids in one.accepted_ids(board)] == list(accepted)
    read = [one.parse(text, board) for text in accepted]
    assert set(read) == set(board.legal_moves)
    if accepted:
        assert None not in read


@pytest.mark.parametrize("written", ["", " ", "e2e5", "0000", "--", "Ke9", "e2", "hello", "1-0"])
def test_what_is_no_legal_move_is_none(one: Encoding, written: str) -> None:
    assert one.parse(written, chess.Board()) is None


def test_a_dataset_gives_what_each_game_gives_alone(one: Encoding, dataset: Games) -> None:
    """And backwards, some of them, twice: in the order asked for."""
    named = [name for name in GAMES if GAMES[name]]
    alone = [whole(one, name) for name in named]
    for places in (list(range(len(named))), [3, 0, 3], []):
        tokens = one.games(dataset, np.array(places, np.int64))
        assert np.issubdtype(tokens.ids.dtype, np.integer)
        assert tokens.offsets.dtype == np.int64
        wanted = [(number, ply, item) for number, place in enumerate(places) for ply, item in enumerate(alone[place])]
        assert tokens.source.tolist() == [number for number, _, _ in wanted]
        assert tokens.ply.tolist() == [ply if one.content == "position" else 0 for _, ply, _ in wanted]
        for number, (_, _, item) in enumerate(wanted):
            assert tuple(tokens.item(number).tolist()[: len(item)]) == item
            assert set(tokens.item(number).tolist()[len(item) :]) <= one.boundary_ids


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_sites_of_many_are_those_of_each(one: Encoding, dataset: Games, alignment: Alignment) -> None:
    tokens = one.games(dataset, np.arange(len(dataset)))
    for name in one.site_names:
        found = one.sites(name, tokens, alignment)
        assert (np.diff(found.item) >= 0).all()
        for number in range(0, len(tokens), max(1, len(tokens) // 20)):
            item = tokens.item(number)
            just = Tokens(item, np.array([0, len(item)]), np.zeros(1, np.int64), tokens.ply[number : number + 1])
            alone, mine = one.sites(name, just, alignment), found.take(found.item == number)
            for column in ("token", "ply", "phase"):
                assert getattr(mine, column).tolist() == getattr(alone, column).tolist(), (name, number, column)
        if len(found):
            assert found.phase.min() >= 0
            assert found.phase.max() < len(one.phases)


def test_turns_are_where_prompts_end_with_the_board_of_the_replay(one: Encoding, dataset: Games) -> None:
    """The ply of a turn is that of the board which the tokens so far lead to, and its side is to move."""
    named = [name for name in GAMES if GAMES[name]]
    tokens = one.games(dataset, np.arange(len(named)))
    turns = one.sites("turns", tokens)
    sides = {side: one.sites(f"{side}-turns", tokens) for side in ("white", "black")}
    assert len(turns) == sum(map(len, sides.values()))
    assert set(turns.ply[turns.ply % 2 == 0].tolist()) == set(sides["white"].ply.tolist())
    seen: dict[int, set[int]] = {}
    for item, token, ply in zip(turns.item.tolist(), turns.token.tolist(), turns.ply.tolist(), strict=True):
        game = int(tokens.source[item])
        board = boards(named[game])[ply]
        assert tuple(tokens.item(item)[: token + 1].tolist()) == one.prompt(board)
        seen.setdefault(game, set()).add(ply)
    for game, name in enumerate(named):
        assert seen[game] >= set(range(len(GAMES[name].split())))


def test_last_is_the_last_token_of_each_item(one: Encoding, dataset: Games) -> None:
    tokens = one.games(dataset, np.arange(len(dataset)))
    assert one.sites("last", tokens).token.tolist() == (np.diff(tokens.offsets) - 1).tolist()
    assert len(one.sites("all", tokens)) == len(tokens.ids)


@pytest.mark.parametrize("text", ["<unk>", "e2e4é", "ü", "j9", "%"])
def test_unknown_text_is_refused_in_one_line(one: Encoding, text: str) -> None:
    with pytest.raises(BadInputError) as caught:
        one.encode(text)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("ids", [[100_000], [-1], np.array([60_000])])
def test_an_id_outside_the_vocabulary_is_refused(one: Encoding, ids: Any) -> None:
    with pytest.raises(BadInputError, match="vocabulary"):
        one.decode(ids)


def test_unknown_names_are_refused(one: Encoding) -> None:
    with pytest.raises(NotFoundError, match="commas"):
        one.sites("commas", Tokens.from_items([one.prompt(chess.Board())]))
    with pytest.raises(BadInputError, match="sideways"):
        one.sites("all", Tokens.from_items([one.prompt(chess.Board())]), "sideways")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="already"):
        register_encoding(get_encoding(list_encodings()[0]))
    with pytest.raises(NotFoundError, match=re.escape("encoding 'bpe' does not exist")):
        get_encoding("bpe")


def test_a_position_without_its_game_is_written_or_refused(one: Encoding) -> None:
    fen = "8/P7/8/8/8/8/8/K1k5 w - - 0 90"
    if one.content == "position":
        assert one.decode(one.prompt(chess.Board(fen))) == fen
        assert len(one.boards([fen, chess.Board()])) == 2
        return
    with pytest.raises(BadInputError, match="moves that led"):
        one.prompt(chess.Board(fen))
    with pytest.raises(BadInputError, match="not positions"):
        one.boards([fen])


def test_boards_without_kings_have_answers(one: Encoding) -> None:
    """Edits take pieces away: python-chess then gives pseudo-legal moves."""
    board = chess.Board("rnbq1bnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w - - 0 1")
    assert len(one.answers(board)) == 20
    assert one.parse(one.answer_text(one.answer(board, chess.Move.from_uci("g1f3"))), board)


def fits(ids: Any, forms: Any) -> bool:
    return any(len(form) == len(ids) and all(i in place for i, place in zip(ids, form, strict=True)) for form in forms)


def test_every_legal_move_has_the_form_of_a_move_and_other_texts_have_not(one: Encoding) -> None:
    forms = set(one.forms)
    for name in GAMES:
        for board in boards(name)[::5]:
            for ids in one.answers(board).values():
                assert fits(ids[:-1] if ids[-1] in one.stop_ids else ids, forms)
    assert not fits((), forms)
    if one.answer_size != one.size:  # every id that is written is a move
        return
    answer = one.answer(chess.Board(), chess.Move.from_uci("g1f3"))
    written = tuple(i for i in answer if i not in one.stop_ids)
    for wrong in (written[:-1], written + written[-1:] * 3):
        assert not fits(wrong, forms)
    whole_moves = sum(int(np.prod([len(place) for place in form])) for form in forms)
    with_pieces = isinstance(one, MoveTokens) and one.spelling.needs_board
    possible = sum(1 for color in chess.COLORS for _ in list_possible_moves(color)) if with_pieces else 1968
    assert one.notation == "san" or whole_moves == possible
