"""Classes of prefixes are equal positions by python-chess, and their partners satisfy their definitions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import chess
import numpy as np
import pytest

from chessreg.encodings import get_encoding
from chessreg.errors import BadInputError
from chessreg.experiments.markov.classes import (
    Classes,
    choose_classes,
    collect_prefixes,
    draw_prefixes,
    find_nearest_partners,
    find_same_last_partners,
)
from chessreg.experiments.markov.spec import MarkovSpec
from chessreg.games.boards.moves import compute_boards_after, compute_rights_after, pack_moves, unpack_moves
from chessreg.games.datasets.build import build_dataset
from chessreg.games.datasets.dataset import Games
from tests.conftest import random_game

from .orders import pgn_of_orders

UCI = get_encoding("uci-square-72")


def spec_of(**settings):
    return MarkovSpec(**{"dataset": "d", "checkpoint": "c", "first_ply": 3, "last_ply": 8} | settings)


@pytest.fixture(scope="module")
def games(tmp_path_factory) -> Games:
    folder = tmp_path_factory.mktemp("orders")
    (folder / "games.pgn").write_text(pgn_of_orders(10, 6))
    build_dataset([folder / "games.pgn"], folder / "made")
    return Games(folder / "made")


@pytest.fixture(scope="module")
def prefixes(games):
    return collect_prefixes(spec_of(), UCI, 128, games, games.rows())


def board_of(games, prefixes, place) -> chess.Board:
    board = chess.Board()
    for move in unpack_moves(games.moves([prefixes.game[place]])[0][: 2 * int(prefixes.ply[place])]):
        board.push(move)
    return board


@pytest.mark.parametrize("reference", ["same-plies", "prefixes"])
def test_the_reference_population_is_drawn_without_regard_to_class(prefixes, reference):
    spec = spec_of(reference_population=reference, classes=40)
    classes = choose_classes(spec, prefixes)
    drawn = draw_prefixes(spec, prefixes, classes.member)
    assert len(np.unique(drawn)) == len(drawn) == len(classes.member)
    assert (prefixes.phase[drawn] == prefixes.phase[classes.member]).all()
    assert (prefixes.ply[drawn] == prefixes.ply[classes.member]).all() == (reference == "same-plies")
    inside = np.isin(drawn, classes.member).mean()
    assert 0 < inside < 0.9  # as members are of all prefixes, not more
    assert (drawn == draw_prefixes(spec, prefixes, classes.member)).all()
    assert (drawn != draw_prefixes(spec_of(reference_population=reference, seed=1), prefixes, classes.member)).any()
    [unit] = [classes.member[classes.number == 3]]
    kept = replace(classes, reference=drawn).list_needed_prefixes(3, 4)
    assert set(kept.tolist()) == {*unit.tolist(), *drawn[classes.number == 3].tolist()}


def test_rights_are_those_of_python_chess():
    packed = [pack_moves(list(random_game(number, 160).mainline_moves())) for number in range(12)]
    boards, offsets = compute_boards_after(packed)
    found = compute_rights_after(packed, boards, offsets)
    files = set()
    for number, moves in enumerate(packed):
        board = chess.Board()
        for ply, move in enumerate([None, *unpack_moves(moves)]):
            if move:
                board.push(move)
            castling, square = board.epd(en_passant="xfen").split()[2:4]
            rights = sum(2 ** "KQkq".index(letter) for letter in castling if letter != "-")
            file = 0 if square == "-" else chess.parse_square(square) % 8 + 1
            assert found[offsets[number] + ply] == rights + 16 * file, (number, ply)
            files.add(file)
    assert len(files) > 4


@pytest.mark.parametrize("equal", ["position", "placement"])
def test_classes_are_positions_that_several_move_lists_reach(games, equal):
    spec = spec_of(equal=equal)
    prefixes = collect_prefixes(spec, UCI, 128, games, games.rows())
    found = choose_classes(spec, prefixes)
    lists = defaultdict(set)
    for place in range(len(games)):
        board = chess.Board()
        for ply, move in enumerate(unpack_moves(games.moves([place])[0]), 1):
            board.push(move)
            if spec.first_ply <= ply <= spec.last_ply:
                key = board.epd(en_passant="xfen") if equal == "position" else (board.board_fen(), board.turn)
                lists[key].add(tuple(board.move_stack))
    wanted = sorted(len(own) for own in lists.values() if len(own) > 1)
    assert len(prefixes) == sum(map(len, lists.values()))  # every list once
    assert found.candidate_count == len(wanted) > 20
    assert found.orders == sum(wanted)
    assert sorted(found.sizes) == wanted
    for number in range(len(found)):
        members = found.member[found.number == number]
        boards = [board_of(games, prefixes, place) for place in members]
        assert len({board.board_fen() for board in boards}) == 1
        assert len({tuple(board.move_stack) for board in boards}) == len(boards)
        assert len(set(prefixes.phase[members])) == 1


def test_settings_bound_members_and_classes_and_the_seed_draws_them(prefixes):
    every = choose_classes(spec_of(), prefixes)
    few = choose_classes(spec_of(max_members=2, classes=5), prefixes)
    assert (len(few), set(few.sizes)) == (5, {2})
    assert [set(prefixes.key[few.member[few.number == n]]) for n in range(5)] == [
        set(prefixes.key[every.member[every.number == n]]) for n in range(5)
    ]
    other = choose_classes(spec_of(classes=5, seed=1), prefixes)
    assert set(prefixes.key[other.member]) != set(prefixes.key[few.member])
    assert choose_classes(spec_of(min_members=4), prefixes).sizes.min() >= 4
    apart = choose_classes(spec_of(distinct_games=True), prefixes)
    own = [set(prefixes.game[apart.member[apart.number == n]]) for n in range(len(apart))]
    assert sum(map(len, own)) == len(set().union(*own))
    assert 1 < len(apart) < len(every)


def test_the_order_of_games_does_not_matter(games, prefixes):
    back = collect_prefixes(spec_of(), UCI, 128, games, games.rows()[::-1].copy())
    ours, theirs = choose_classes(spec_of(classes=9), prefixes), choose_classes(spec_of(classes=9), back)
    assert prefixes.hash[ours.member].tolist() == back.hash[theirs.member].tolist()


def test_partners_have_the_same_last_move_or_one_piece_apart(games, prefixes):
    found = choose_classes(spec_of(), prefixes)
    found = replace(
        found,
        same_last=find_same_last_partners(0, prefixes, found.member),
        nearest=find_nearest_partners(0, games, prefixes, found.member),
    )
    seen = {"same_last": 0, "nearest": 0}
    for place, same_last, nearest in zip(found.member, found.same_last, found.nearest, strict=True):
        board = board_of(games, prefixes, place)
        for name, other in (("same_last", same_last), ("nearest", nearest)):
            if other < 0:
                continue
            seen[name] += 1
            their = board_of(games, prefixes, other)
            assert (prefixes.ply[other], prefixes.phase[other]) == (prefixes.ply[place], prefixes.phase[place])
            assert their.board_fen() != board.board_fen()
            if name == "same_last":
                assert their.peek() == board.peek()
            else:
                ours, others = (set(one.piece_map().items()) for one in (board, their))
                assert max(len(ours - others), len(others - ours)) == 1
    assert seen["same_last"] > len(found.member) / 2
    assert seen["nearest"] > 10
    assert set(found.list_needed_prefixes(0, 2)) <= {*found.member, *found.same_last, *found.nearest}


def test_a_neighbour_is_found_wherever_there_is_one(games, prefixes):
    """Against every pair of beginnings of equal ply."""
    found = choose_classes(spec_of(classes=12), prefixes)
    nearest = find_nearest_partners(0, games, prefixes, found.member)
    pieces = [set(board_of(games, prefixes, place).piece_map().items()) for place in range(len(prefixes))]
    for place, other in zip(found.member.tolist(), nearest.tolist(), strict=True):
        there = any(
            prefixes.ply[p] == prefixes.ply[place] and 0 < max(len(own - pieces[place]), len(pieces[place] - own)) == 1
            for p, own in enumerate(pieces)
        )
        assert there == (other >= 0)


def test_no_class_is_refused_with_what_to_change(games):
    prefixes = collect_prefixes(spec_of(first_ply=1, last_ply=2), UCI, 128, games, games.rows())
    with pytest.raises(
        BadInputError, match=f"by 2 move orders within plies 1 to 2, of {len(prefixes)} move lists"
    ) as caught:
        choose_classes(spec_of(first_ply=1, last_ply=2), prefixes)
    assert "--last-ply" in caught.value.hint


def test_a_short_context_leaves_out_what_it_cannot_read(games):
    assert collect_prefixes(spec_of(), UCI, 11, games, games.rows()).ply.max() == 5


@pytest.mark.slow
def test_the_games_of_a_month_reach_as_many_positions_as_were_counted(shared_data, tmp_path):
    """Prefixes of plies 6 to 40 of 23,261 games reach 13,531 positions, whole games 52."""
    build_dataset([shared_data / "games" / "lichess-probe-test.pgn.zst"], tmp_path / "made")
    games = Games(tmp_path / "made")
    spec = spec_of(first_ply=6, last_ply=40, equal="placement", classes=20_000)
    found: Classes = choose_classes(spec, collect_prefixes(spec, UCI, 512, games, games.rows()))
    assert (len(games), found.candidate_count, len(found), found.orders) == (23_261, 13_531, 13_531, 36_805)
