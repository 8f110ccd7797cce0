"""Caches, probes and vectors of models that do not read PGN characters: UCI squares, and positions as FENs."""

from __future__ import annotations

import chess
import numpy as np
import pytest
import torch

from chessreg.encodings import get_encoding
from chessreg.entities import checkpoint
from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.cache import CacheSpec
from chessreg.experiments.probe import ProbeSpec
from chessreg.experiments.settings.skill import SkillSettings
from chessreg.games.boards.moves import replay_boards
from chessreg.models.adapters.fen_encoder import FenConfig, FenEncoder
from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint
from chessreg.runs.activations import load_cache
from chessreg.runs.fitted import load_probe, load_vector
from chessreg.session import open_session
from tests.replays import replay_texts
from tests.specs import vector_spec

NAMES = {"uci-square-72": "uci", "fen-77": "fen"}


@pytest.fixture(scope="module", autouse=True)
def models(world):
    """Tiny models of random weights in the world's registry: a GPT-2 of UCI squares, a bidirectional FEN encoder."""
    networks = {
        "uci-square-72": make_random_gpt2(GPT2Config(2, 2, 32, block_size=160, vocab_size=72), seed=3),
        "fen-77": FenEncoder(FenConfig(2, 4, 32)).make_untrained(3),
    }
    with open_session(str(world / "registry.db"), world / "store") as session:
        for name, network in networks.items():
            info = CheckpointInfo.from_network(network, name)
            with session.store.stage("checkpoint") as folder:
                save_checkpoint(network, folder, info)
                artifact = checkpoint.publish_checkpoint(session.store, folder, None)
            with session.database.write() as sql:
                row = checkpoint.build_checkpoint_row(info, artifact.digest, training_datasets=None)
                checkpoint.record_checkpoint(sql, artifact, row, NAMES[name])


def run(session, spec) -> str:
    from chessreg.registry import tables

    report = session.run(spec)
    with session.database.read() as sql:
        return f"run:{sql.get_one(tables.Run, report.run_id).spec_hash}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sites", ["dots", "black-turns", "all"])
def test_rows_equal_a_forward_pass_of_each_item_alone(world_session, name, sites):
    session, written = world_session, get_encoding(name)
    spec = CacheSpec(
        checkpoint=NAMES[name], dataset="sample:fit", games=3, max_sites=50, dtype="float32", layers=(1,), sites=sites
    )
    found = load_cache(session.inputs, run(session, spec))
    games, _ = session.inputs.dataset(found.dataset)
    model = session.model(NAMES[name])
    rows = found.array
    for game in np.unique(rows.game):
        tokens = written.games(games, np.array([game]))
        expected = written.sites({"dots": "white-turns"}.get(sites, sites), tokens)
        at = np.flatnonzero(rows.game == game)
        at = at[np.lexsort((rows.token[at], rows.ply[at]))]
        assert rows.token[at].tolist() == expected.token[:50].tolist()
        assert rows.ply[at].tolist() == expected.ply[:50].tolist()
        for site in range(0, len(at), 7):
            ids = torch.from_numpy(tokens.item(expected.item[site]).astype(np.int64))[None]
            alone = model.residuals(ids, [1])[0][0, expected.token[site]].numpy()
            np.testing.assert_allclose(found.values(1, at[site : site + 1])[0], alone, atol=1e-4)


def test_a_probe_of_uci_squares_is_labelled_with_the_board_that_its_site_stands_at(world_session):
    from chessreg.experiments.probe.data import Labelling, ProbeData

    for alignment, earlier in (("post-ply", 0), ("pre-ply", 1)):
        cache = run(world_session, CacheSpec(
            checkpoint="uci", dataset="sample:fit", games=12, sites="destinations", alignment=alignment,
        ))  # fmt: skip
        data = ProbeData.load(world_session.inputs, cache, Labelling("piece"), "cache")
        games, _ = world_session.inputs.dataset(data.cache.dataset)
        row = np.flatnonzero(data.cache.array.token == 8)[0]  # <s> and four whole moves: the target of the fourth
        boards, _ = replay_texts(games.texts(np.array([data.item[row]])))
        assert (data.labels[row] == boards[4 - earlier] + 6).all()
    probe = load_probe(world_session.inputs, run(world_session, ProbeSpec(cache=cache, epochs=1, label="color")), 1)
    assert probe.weight.shape == (32, 64, 3)


@pytest.mark.parametrize("name", NAMES)
def test_a_contrast_from_the_model_is_that_of_the_cached_sites(world_session, name):
    two = {"skill": SkillSettings(bins=2), "first_ply": 5, "last_ply": 20}
    named = {"checkpoint": NAMES[name], "dataset": "sample:fit", "sites": "turns"}
    cache = run(world_session, CacheSpec(**named, dtype="float32"))
    cached = run(world_session, vector_spec(source="contrastive", cache=cache, **two))
    streamed = run(world_session, vector_spec(source="contrastive-uncached", **named, **two))
    for layer in (0, 1):
        one, other = (load_vector(world_session.inputs, reference, layer) for reference in (cached, streamed))
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_sites_that_the_encoding_lacks_are_refused_with_those_it_has(world_session):
    with pytest.raises(NotFoundError, match=r"spaces.*there are turns"):
        world_session.run(CacheSpec(checkpoint="uci", dataset="sample:fit", sites="spaces"))


@pytest.fixture(scope="module")
def positions(world, models, tmp_path_factory):
    """Names of two datasets of positions, with no game in both."""
    from chessreg.entities.adding import add_dataset

    folder = tmp_path_factory.mktemp("positions")
    with open_session(str(world / "registry.db"), world / "store") as session:
        games, _ = session.inputs.dataset(session.inputs.reference("dataset", "sample"))
        for name, places in (("held", range(6)), ("looked-at", range(6, 30))):
            rows = [
                f"{number}-{ply},{board.fen()}"
                for number in places
                for ply, board in enumerate(replay_boards(games.moves(np.array([number]))[0]))
                if ply % 3 == number % 2
            ]
            (folder / f"{name}.csv").write_text("\n".join(["game,fen", *rows]))
            add_dataset(session.database, session.store, [folder / f"{name}.csv"], name=name)
    return "looked-at", "held"


def test_positions_are_cached_one_by_one_and_a_probe_reads_their_boards(world_session, positions):
    from chessreg.experiments.probe.data import Labelling, ProbeData

    session = world_session
    caches = [run(session, CacheSpec(checkpoint="fen", dataset=name, sites="last")) for name in positions]
    data = ProbeData.load(session.inputs, caches[0], Labelling("piece"), "cache")
    fens = data.items.fens(data.item)
    assert len(set(data.item.tolist())) == len(data.item) > 200
    for row in range(0, len(fens), 17):
        board = chess.Board(fens[row])
        letters = [board.piece_at(square) for square in chess.SQUARES]
        assert data.labels[row].tolist() == [".kqrbnp.PNBRQK".index(p.symbol(), 1) - 1 if p else 6 for p in letters]
    report = session.run(ProbeSpec(cache=caches[0], test_cache=caches[1], epochs=1, label="legal-move"))
    assert not report.missing


def test_what_a_dataset_of_positions_cannot_tell_is_refused_in_one_line(world_session, positions):
    with pytest.raises(BadInputError, match="uci-square-72 writes games, not positions"):
        world_session.run(CacheSpec(checkpoint="uci", dataset=positions[0]))
    cache = run(world_session, CacheSpec(checkpoint="fen", dataset=positions[0], sites="last"))
    for label, why in (("previous-move", "plies earlier"), ("skill", "is a label of games")):
        with pytest.raises(BadInputError, match=why):
            world_session.run(ProbeSpec(cache=cache, label=label))
    with pytest.raises(BadInputError, match="holds positions, and games are needed"):
        world_session.run(vector_spec(source="contrastive-uncached", checkpoint="fen", dataset=positions[0]))
