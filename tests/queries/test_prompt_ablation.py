"""The effect of a list of legal moves: two models with equal tuning except for the list, each asked as it was tuned."""

import pytest

from chessreg.queries import run_query
from chessreg.registry import tables
from tests.quick import quick_first

PLAIN, LISTED = "FEN: {FEN}Best Move: {BM}", "FEN: {FEN} of {LM}Best Move: {BM}"


def tuned(make, template, **settings):
    """A checkpoint that a finetune run made."""
    spec = {"checkpoint": "sha256:0", "template": template, "notation": None, "steps": 100, "seed": 0} | settings
    run, checkpoint = make.run("finetune", 1, spec=spec), make.checkpoint()
    with make.database.write() as session:
        session.get_one(tables.Checkpoint, checkpoint.id).run_id = run.id
    return checkpoint


def asked(make, checkpoint, template, legal, *, days=0, prompt="junkin-small"):
    """A decoding run in which `legal` of ten answers are legal moves."""
    spec = {"dataset": "dataset:0", "positions": 10, "length": "free", "template": template, "seed": 0}
    run = make.run("decoding", 10, checkpoint=checkpoint, spec=spec, days=days)
    for unit in range(10):
        detail = {"prompt": prompt, "legal_list": "{LM}" in template, "game": None, "valid": True,
                  "legal": unit < legal, "first": False, "near": False}  # fmt: skip
        make.add(
            tables.Prediction(
                run_id=run.id, unit=unit, name="autoregressive", attempt_id=run.attempt_id, item=unit, text="e4",
                value=0.0, detail=detail,
            )
        )  # fmt: skip
    return run


def list_legal(make, run):
    rows = run_query(make.database, "prompt ablation").rows
    return next(row["list_legal"] for row in rows if row["run_id"] == run.id.hex)


@pytest.mark.parametrize(
    "other",
    quick_first(2, [{"notation": "san"}, {"lora_rank": 8}, {"layout": "flattened_with_slashes"}, {"warmup_steps": 9},
                    {"weight_decay": 0.5}, {"final_fraction": 0.5}]),
)  # fmt: skip
def test_a_model_that_was_tuned_otherwise_is_no_plain_one(make, other):
    asked(make, tuned(make, PLAIN, **other), PLAIN, 2)
    listed = asked(make, tuned(make, LISTED), LISTED, 9)
    assert list_legal(make, listed) is None
    asked(make, tuned(make, PLAIN), PLAIN, 4, days=1)
    assert list_legal(make, listed) == pytest.approx(50)


def test_what_the_list_ends_with_and_what_was_only_measured_are_no_other_tuning(make):
    asked(make, tuned(make, PLAIN, heldout_steps=7), PLAIN, 4)
    listed = asked(make, tuned(make, LISTED, last_separator=True), LISTED, 9, prompt="junkin-1, last separator")
    assert list_legal(make, listed) == pytest.approx(50)


@pytest.mark.parametrize(
    ("template", "prompt"), [("Another: {FEN}{BM}", "own 12345678"), (PLAIN, "junkin-small, SAN")]
)  # fmt: skip
def test_a_model_that_is_asked_otherwise_is_no_plain_one(make, template, prompt):
    asked(make, tuned(make, PLAIN), template, 2, prompt=prompt)
    assert list_legal(make, asked(make, tuned(make, LISTED), LISTED, 9)) is None


def test_of_several_plain_models_the_first_is_taken(make):
    plain = tuned(make, PLAIN)
    for days in (3, 1, 2):
        asked(make, plain, PLAIN, days, days=days)
    assert list_legal(make, asked(make, tuned(make, LISTED), LISTED, 9)) == pytest.approx(80)
