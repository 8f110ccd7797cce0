"""Encoding × adapter × kind: each works on a tiny model made here, or a line states the missing part."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chessreg import encodings
from chessreg.entities.adding import add_dataset
from chessreg.errors import ChessregError
from chessreg.experiments.cache import CacheSpec
from chessreg.experiments.decoding import DecodingSpec
from chessreg.experiments.edit import EditSpec
from chessreg.experiments.legality import LegalitySpec
from chessreg.experiments.markov import MarkovSpec
from chessreg.experiments.move_accuracy import MoveAccuracySpec
from chessreg.experiments.move_quality import MoveQualitySpec
from chessreg.experiments.perplexity import PerplexitySpec
from chessreg.experiments.play import PlaySpec
from chessreg.experiments.probe import ProbeSpec
from chessreg.experiments.probe_apply import ApplySpec
from chessreg.experiments.puzzles import PuzzlesSpec
from chessreg.experiments.sae import SaeOptions, SaeSpec
from chessreg.experiments.token_legality import TokenLegalitySpec
from chessreg.experiments.vector_apply import VectorApplySpec
from chessreg.models.adapters import ADAPTERS as REGISTERED
from chessreg.registry import tables
from chessreg.runs.spec import ExecutionOptions, Spec
from chessreg.session import Session, open_session
from tests.conftest import PUZZLES
from tests.language_models import bring_in
from tests.quick import quick_first
from tests.specs import vector_spec

ENCODINGS = ("pgn-char-32", "uci-square-72", "uci-square-77", "fen-77", "prompt")
ADAPTERS = ("gpt2", "causal-fen-encoder", "bidirectional-fen-encoder", "llama", "gpt_neox")
KINDS = ("cache", "probe", "vector", "legality", "move-quality", "edit", "play")
OTHERS = ("perplexity", "token-legality", "markov", "sae", "puzzles", "move-accuracy", "decoding", "probe-apply",
          "vector-apply")  # fmt: skip
SMALL: dict[str, Any] = {"dataset": "sample:fit", "games": 3}
OF_GAMES, OF_BOARDS = ENCODINGS[:3], ENCODINGS[3:]
WRITING = ("legality", "move-quality", "edit", "play", "perplexity", "puzzles", "move-accuracy", "decoding")

REFUSED = {
    **{(name, adapter, kind): missing
       for kind, names, missing in (("puzzles", OF_GAMES, "the games before these puzzles are unknown"),
                                    ("move-accuracy", OF_GAMES, "these games are unknown"),
                                    ("decoding", OF_GAMES, "the games before these positions are unknown"),
                                    ("token-legality", OF_BOARDS, "so a game has no tokens to score"),
                                    ("markov", OF_BOARDS, "encodes positions, not games"))
       for name in names for adapter in ADAPTERS},
    **{(name, f"{mask}-fen-encoder", kind): "vocabulary of 31"
       for name in ENCODINGS if name != "fen-77" for mask in ("causal", "bidirectional") for kind in KINDS + OTHERS},
    ("maia-2", "maia-2", "token-legality"): "so a game has no tokens to score",
    ("maia-2", "maia-2", "markov"): "encodes positions, not games",
    **{("fen-77", adapter, kind): "1,968 answers" for adapter in ("gpt2", "llama", "gpt_neox") for kind in WRITING},
}  # fmt: skip
"""What is missing where a cell does not work; every other works."""


@pytest.fixture(scope="module")
def session(world: Path) -> Iterator[Session]:
    (world / "puzzles.csv").write_text(PUZZLES)
    with open_session(str(world / "registry.db"), world / "store") as opened:
        add_dataset(opened.database, opened.store, [world / "puzzles.csv"], name="puzzles")
        yield opened


@pytest.fixture(scope="module")
def imported(session: Session, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], str]:
    """The checkpoint of an encoding and an adapter, imported once; the refusal, as often as it is asked for."""
    done: dict[tuple[str, str], str | ChessregError] = {}
    root = tmp_path_factory.mktemp("matrix")

    def ensure(name: str, adapter: str) -> str:
        if (name, adapter) not in done:
            try:
                done[name, adapter] = bring_in(session, name, adapter, root / f"{name}-{adapter}")
            except ChessregError as error:
                done[name, adapter] = error
        found = done[name, adapter]
        if isinstance(found, ChessregError):
            raise found
        return found

    return ensure


def attempt(session: Session, checkpoint: str, kind: str) -> None:
    """Run the kind at its smallest. The earlier kinds that it needs are run as well, and exist after the first time."""
    cache = CacheSpec(checkpoint=checkpoint, max_sites=4, sites="white-turns", dataset="sample:fit", games=36)
    if kind in ("cache", "probe", "probe-apply", "vector", "vector-apply", "edit", "sae"):
        session.run(cache, name=f"{checkpoint}-cache")
    if kind in ("probe", "probe-apply", "edit"):
        session.run(ProbeSpec(cache=f"{checkpoint}-cache", epochs=1), name=f"{checkpoint}-probe")
    if kind in ("vector", "vector-apply"):
        session.run(
            vector_spec(source="contrastive", cache=f"{checkpoint}-cache", first_ply=2), name=f"{checkpoint}-vector"
        )
    if kind in OTHERS:
        spec, options = other(checkpoint, kind)
        session.run(spec, options)
    elif kind == "legality":
        session.run(LegalitySpec(checkpoint=checkpoint, every=40, mass=True, **SMALL))
    elif kind == "move-quality":
        session.run(MoveQualitySpec(checkpoint=checkpoint, every=40, judge_limit="nodes=50", **SMALL))
    elif kind == "edit":
        edit = EditSpec(checkpoint=checkpoint, probe=f"{checkpoint}-probe", samples=1, last_move=20, per_game=1,
                        dataset="sample:test", games=2)  # fmt: skip
        session.run(edit)
    elif kind == "play":
        session.run(PlaySpec(checkpoint=checkpoint, opponent="random", games=2, policy="retry:1", move_limit=4,
                             opening="random:4", adjudication="none"))  # fmt: skip


def other(checkpoint: str, kind: str) -> tuple[Spec, ExecutionOptions | None]:
    """A small run of one of OTHERS."""
    model, puzzles = {"checkpoint": checkpoint}, {"checkpoint": checkpoint, "dataset": "puzzles"}
    cache: dict[str, Any] = {"cache": f"{checkpoint}-cache", "allow_overlap": True}
    specs: dict[str, Callable[[], Spec]] = {
        "perplexity": lambda: PerplexitySpec(**model, **SMALL),
        "token-legality": lambda: TokenLegalitySpec(**model, **SMALL),
        "markov": lambda: MarkovSpec(**model, dataset="sample:test", last_ply=20, classes=4, resamples=99),
        "sae": lambda: SaeSpec(**cache, expansions=(2,), tokens=500, batch_tokens=100, heldout_games=5),
        "puzzles": lambda: PuzzlesSpec(**puzzles),
        "move-accuracy": lambda: MoveAccuracySpec(**puzzles),
        "decoding": lambda: DecodingSpec(**puzzles),
        "probe-apply": lambda: ApplySpec(**cache, probe=f"{checkpoint}-probe"),
        "vector-apply": lambda: VectorApplySpec(**cache, vector=f"{checkpoint}-vector", first_ply=2),
    }
    # one text a batch: of some texts no token is in the cache
    return specs[kind](), SaeOptions(batch_games=1) if kind == "sae" else None


# `make test` has every encoding on GPT-2 and every adapter on one encoding, because a layer does not depend on the
# meaning of its tokens.
SLOW = {(name, "gpt_neox") for name in ENCODINGS if name != "prompt"}
SLOW |= {(name, "llama") for name in ENCODINGS if name not in ("prompt", "uci-square-72")}
# Of the other kinds, only those without a separate test on such a model.
QUICK = {("fen-77", "bidirectional-fen-encoder", "sae"), ("fen-77", "gpt2", "decoding")}
SLOW |= {("maia-2", "maia-2")}  # test_maia2.py has its hooks, edits and moves
CELLS = [
    pytest.param(
        name,
        adapter,
        kind,
        marks=[pytest.mark.slow]
        if (name, adapter) in SLOW or (kind in OTHERS and (name, adapter, kind) not in QUICK)
        else [],
        id=f"{name}-{adapter}-{kind}",
    )
    for name, adapter in [*itertools.product(ENCODINGS, ADAPTERS), ("maia-2", "maia-2")]
    for kind in KINDS + OTHERS
]


def test_the_matrix_has_every_encoding_and_every_adapter() -> None:
    assert {*encodings.list_encodings(), "prompt"} == {*ENCODINGS, "maia-2"}
    own_tests = {"searchless-chess"}  # tests/models/test_searchless_chess.py: its heads, and the kinds that read values
    assert {*REGISTERED, "gpt_neox"} - own_tests - {"maia-2"} == {
        "fen-encoder" if "fen" in name else name for name in ADAPTERS
    }


@pytest.mark.parametrize(("name", "adapter", "kind"), CELLS)
def test_a_cell_works_or_says_what_is_missing(
    session: Session, imported: Callable[[str, str], str], name: str, adapter: str, kind: str
) -> None:
    missing = REFUSED.get((name, adapter, kind))
    if missing is None:
        attempt(session, imported(name, adapter), kind)
        return
    with pytest.raises(ChessregError, match=missing) as caught:
        attempt(session, imported(name, adapter), kind)
    assert "\n" not in str(caught.value)


FOUR = [
    ("pgn-char-32", "gpt2"),
    ("uci-square-72", "gpt2"),
    ("fen-77", "bidirectional-fen-encoder"),
    ("prompt", "llama"),
    pytest.param("maia-2", "maia-2", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("policy", quick_first(2, ["free", "legal", "retry:2", "trie"]))
@pytest.mark.parametrize(("name", "adapter"), FOUR)
def test_every_encoding_goes_by_every_policy(
    session: Session, imported: Callable[[str, str], str], name: str, adapter: str, policy: str
) -> None:
    """In a match and on the positions of games; where the policy allows nothing else every move is legal."""
    checkpoint = imported(name, adapter)
    play = session.run(PlaySpec(checkpoint=checkpoint, opponent="random", games=2, policy=policy, move_limit=3,
                                opening="random:4", adjudication="none"))  # fmt: skip
    free = policy == "free" and name != "pgn-char-32"  # whose random weights are nearly uniform: thousands of texts
    asked = session.run(LegalitySpec(checkpoint=checkpoint, every=40, policy=policy, mass=free, valid=free, **SMALL))
    with session.database.read() as sql:
        games = sql.query(tables.Game).filter_by(run_id=play.run_id).all()
        turns = sql.query(tables.Trial).filter_by(run_id=asked.run_id).all()
        legal = [turn.legal_original for turn in turns]
        masses = [
            (turn.mass_original, turn.detail["valid_mass"], turn.detail["valid_missed"]) for turn in turns if free
        ]
        ends = {game.termination for game in games}
    assert len(games) == 2
    assert len(legal) >= 3
    if policy in ("trie", "legal"):
        assert ends == {"move_limit"}
        assert all(legal)
    else:
        assert not all(legal), "random weights write no legal moves all the time"
    for mass, valid, missed in masses:
        assert 0 <= mass <= valid + missed + 1e-5 <= 1.0001
        assert valid == pytest.approx(1, abs=1e-5) or name not in ("fen-77", "maia-2")
