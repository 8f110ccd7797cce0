"""Vector runs of the tests."""

from __future__ import annotations

from chessreg.experiments.vector import VectorOptions

STREAM = {
    "source": "contrastive-uncached",
    "checkpoint": "reference",
    "dataset": "sample:fit",
    "first_ply": 6,
    "last_ply": 20,
}


def recipe(session, name):
    return session.inputs.reference("run:vector", name)


def made(session, spec, name, **how):
    session.run(spec, VectorOptions(threads=1, **how), name=name)
    return recipe(session, name)
