"""Other hook points than the blocks' outputs: cached, probed, contrasted; never edited with."""

from __future__ import annotations

import numpy as np
import pytest

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.experiments.cache import CacheSpec
from chessreg.experiments.edit import EditSpec
from chessreg.experiments.play import PlaySpec
from chessreg.experiments.probe import ProbeSpec
from chessreg.experiments.probe_apply import ApplySpec
from chessreg.models.hook_points import EMBED, LN_FINAL, PATTERNS, RESID_POST, RESID_PRE
from chessreg.session import Session
from chessreg.steering.interventions import InterventionSettings
from tests.specs import vector_spec

FEW = {"checkpoint": "reference", "dataset": "sample:fit", "games": 36, "max_sites": 6}


@pytest.fixture(scope="module")
def session(world):
    from chessreg.session import open_session

    with open_session(str(world / "registry.db"), world / "store") as opened:
        opened.run(CacheSpec(**FEW, hook_points=PATTERNS), name="all")
        opened.run(CacheSpec(**FEW), name="posts")
        yield opened


def test_every_point_of_a_pass_is_cached_and_the_default_is_as_before(session: Session) -> None:
    (row,) = session.inputs.rows(*_of(session, "all"))
    assert row.hook_points == [
        EMBED, "blocks.0.hook_resid_pre", "blocks.1.hook_resid_pre", "blocks.0.hook_resid_post",
        "blocks.1.hook_resid_post", LN_FINAL,
    ]  # fmt: skip
    plain, post, pre = session.cache("posts"), session.cache("all"), session.cache("all", RESID_PRE)
    assert plain.layers == post.layers == pre.layers == [0, 1]
    assert session.cache("all", EMBED).layers == [0]
    assert session.cache("all", LN_FINAL).layers == [1]
    for layer in (0, 1):
        np.testing.assert_array_equal(plain.values(layer), post.values(layer))
    np.testing.assert_array_equal(pre.values(1), post.values(0))
    final = session.cache("all", LN_FINAL).values(1)
    np.testing.assert_allclose(final.mean(1), 0, atol=1e-2)  # a LayerNorm without bias
    assert not np.array_equal(pre.values(0), session.cache("all", EMBED).values(0))  # positions are added between
    with pytest.raises(NotFoundError, match="holds no layer 0"):
        session.cache("all", LN_FINAL).values(0)


def _of(session: Session, name: str):
    from chessreg.registry import tables

    return tables.ActivationCache, session.inputs.run(session.inputs.reference("run:cache", name), "cache")


@pytest.mark.parametrize("pattern", [EMBED, RESID_PRE, LN_FINAL])
def test_a_probe_names_its_hook_point_and_is_refused_where_residuals_are_edited(session: Session, pattern: str) -> None:
    name = f"probe-at-{pattern.replace('*', 'L')}"
    report = session.run(ProbeSpec(cache="all", epochs=1, hook_point=pattern), name=name)
    assert report.state == "complete"
    layer = session.cache("all", pattern).layers[0]
    probe = session.probe(name, layer)
    assert probe.hook_point == pattern.replace("*", str(layer))
    assert session.run(ApplySpec(probe=name, cache="all", allow_overlap=True)).state == "complete"
    with pytest.raises(NotFoundError, match="the cache holds no"):
        session.run(ApplySpec(probe=name, cache="posts", allow_overlap=True))
    with pytest.raises(BadInputError, match=r"an edit changes blocks\.\*\.hook_resid_post; --probe is of"):
        session.run(EditSpec(checkpoint="reference", probe=name, layers=(layer,), dataset="sample:test", games=2))


def test_a_vector_names_its_hook_point_and_so_does_its_control(session: Session) -> None:
    session.run(vector_spec(source="contrastive", cache="all", first_ply=2, hook_point=RESID_PRE), name="pre")
    session.run(vector_spec(source="random", of="pre"), name="pre-random")
    for name in ("pre", "pre-random"):
        from chessreg.runs.fitted import read_vector_rows

        rows = read_vector_rows(session.inputs, session.inputs.reference("run:vector", name))
        assert [row.hook_point for row in rows.values()] == ["blocks.0.hook_resid_pre", "blocks.1.hook_resid_pre"]
    steered = PlaySpec(
        checkpoint="reference", opponent="random", games=1, intervention=InterventionSettings(vector="pre")
    )
    with pytest.raises(BadInputError, match="an edit changes"):
        session.run(steered)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hook_points": ("blocks.0.attn.hook_pattern",)}, r"no hook point 'blocks\.0\.attn\.hook_pattern'"),
        ({"hook_points": ("blocks.2.hook_resid_pre",)}, "layers 0 to 1"),
        ({"hook_points": (LN_FINAL,), "layers": (1,)}, "--layers has no effect"),
        ({"hook_points": (RESID_POST,), "layers": (2,)}, "the model has no layer 2; its layers are 0 to 1"),
    ],
)
def test_a_point_that_the_model_lacks_is_refused_by_name(session: Session, settings: dict, message: str) -> None:
    with pytest.raises(ChessregError, match=message) as caught:
        session.run(CacheSpec(**FEW, **settings))
    assert "\n" not in str(caught.value)


def test_a_hook_point_needs_a_cache_that_holds_it(session: Session) -> None:
    with pytest.raises(NotFoundError, match="the cache holds no ln_final"):
        session.run(ProbeSpec(cache="posts", hook_point=LN_FINAL))
    with pytest.raises(BadInputError, match="--hook-point belongs to --source contrastive, not to"):
        vector_spec(source="contrastive-uncached", checkpoint="reference", dataset="sample:fit", hook_point=LN_FINAL)
    with pytest.raises(BadInputError, match="--hook-point belongs to --source contrastive, not to cascade"):
        vector_spec(source="cascade", cache="all", first_ply=2, hook_point=RESID_PRE)
