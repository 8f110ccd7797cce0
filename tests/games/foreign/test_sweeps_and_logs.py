"""Sweeps of levels and logs of training: the values read, and the refused line."""

from __future__ import annotations

import pytest

from chessreg.errors import BadInputError
from chessreg.games.foreign import FORMATS, find_format, sweep, training_log
from chessreg.games.foreign.game import parse_number


def test_a_sweep_is_read_with_and_without_its_header() -> None:
    for text in ("level,wins,draws,losses\n0,37,62,1\n10,1,32,67\n", "0,37,62,1\r\n\r\n10, 1, 32, 67"):
        counts = sweep.read_sweep(text)
        assert [(c.level, c.wins, c.draws, c.losses, c.games) for c in counts] == [
            (0, 37, 62, 1, 100),
            (10, 1, 32, 67, 100),
        ]
    again = "level,wins,draws,losses\n0,37,62,1\nLevel, Wins, Draws, Losses\n10,1,32,67\n"  # of a second run
    assert [(c.line, c.level) for c in sweep.read_sweep(again)] == [(2, 0), (4, 10)]
    assert [c.level for c in sweep.read_sweep("Stockfish 3,1,0,0\nstockfish4,0,1,0\nstockfish4,1,1,0")] == [3, 4, 4]


def test_a_sweep_that_names_its_numbers_is_read() -> None:
    text = "Checkpoint: 0, Wins: 37, Draws: 62, Losses: 1\nCheckpoint: 10, Wins: 1, Draws: 32, Losses: 67\n"
    assert sweep.is_sweep(text)
    assert sweep.read_sweep(text) == sweep.read_sweep("0,37,62,1\n10,1,32,67\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,1,2,3\n1,2,3\n", "line 2: '1,2,3' is not level,wins,draws,losses"),
        ("level,wins,draws,losses\n0,1,2,nan\n", "line 2"),
        ("0,1.5,2,3\n1,2,3,4\n", "line 1"),
        ("0,10,x,3\n1,2,3,4\n", "line 1: '0,10,x,3' is not level,wins,draws,losses"),
        ("zero,1,2,3\n", "line 1"),
        ("0,1,-2,3\n", "line 1"),
        ("0,1,2,3\n21,1,1,1\n", "line 2: Stockfish has the levels -2 to 20, not 21"),
        ("Checkpoint: 0, Wins: 1, Draws: 2, Losses: 3\nCheckpoint: 1, Wins: 1\n", "line 2: 'Checkpoint: 1, Wins"),
        ("Checkpoint: 0, Wins: 1, Draws: two, Losses: 3\n", "line 1: 'Checkpoint: 0, Wins: 1, Draws: two"),
        ("5,0,0,0\n", "line 1: no games against level 5"),
        ("0,1000000000,0,2\n", "line 1: 1,000,000,002 games against one level"),
        ("5,1,1,999999999\n", "line 1: 1,000,000,001 games against one level"),
        ("level,wins,draws,losses\n", "no line of results"),
        ("0,1,2,3\nlevel,wins,draws\n", "line 2"),
    ],
)
def test_a_line_that_is_no_result_is_named(text: str, said: str) -> None:
    assert sweep.is_sweep(text)  # without a header too a wrong first line is named
    with pytest.raises(BadInputError, match=said):
        sweep.read_sweep(text)


LOG = """compiling the model...
iter 0: loss 7.7204, time 812.40ms
iter 10: loss 6.9012, time 283.10ms, mfu 14.57%
iter 10: loss 6.9000, time 283.10ms
iter 20: loss nan, time 283.02ms
ckpt4000.pt, 2.7652, 25.60
out/ckpt4000_causal.pt, 2.6830, 27.25
ckpt4000_causal.pt, 2.7000, 25.56
saved ckpt8000.pt
"""


def test_a_log_keeps_both_of_two_evaluations_and_says_what_it_left_out() -> None:
    log = training_log.read_training_log(LOG)
    values = {(point.name, point.step, point.repeat): point.value for point in log.points}
    assert values == {
        ("loss", 0, 0): 7.7204, ("step_milliseconds", 0, 0): 812.4, ("loss", 10, 0): 6.9012, ("loss", 10, 1): 6.9,
        ("step_milliseconds", 10, 0): 283.1, ("step_milliseconds", 10, 1): 283.1, ("step_milliseconds", 20, 0): 283.02,
        ("heldout_loss", 4000, 0): 2.7652, ("heldout_accuracy", 4000, 0): pytest.approx(0.256),
        ("heldout_loss/causal", 4000, 0): 2.683, ("heldout_accuracy/causal", 4000, 0): pytest.approx(0.2725),
        ("heldout_loss/causal", 4000, 1): 2.7, ("heldout_accuracy/causal", 4000, 1): pytest.approx(0.2556),
    }  # fmt: skip
    assert (log.repeats, log.nonfinite_lines, log.other_lines, log.lines) == (2, (5,), 2, 9)


def test_what_logging_writes_before_a_message_is_left_aside() -> None:
    stamp = "2024-11-09 03:21:01,667 - train - INFO - "
    plain = training_log.read_training_log(LOG)
    stamped = "".join(f"{stamp}{line}\n" for line in LOG.splitlines())
    assert training_log.is_training_log(stamped)
    assert training_log.read_training_log(stamped) == plain
    joined = stamped.replace("25.60\n", "25.60")  # a line without its end, and the next behind it
    values = [(point.name, point.step, point.value) for point in training_log.read_training_log(joined).points]
    assert values == [(point.name, point.step, point.value) for point in plain.points]
    with pytest.raises(BadInputError, match=r"line 2: 'iter 6: loss' is not"):
        training_log.read_training_log(f"{stamp}iter 5: loss 1.0, time 3ms\n{stamp}iter 6: loss\n")


def test_both_losses_of_nanogpt_s_evaluations_are_read() -> None:
    text = (
        "tokens per iteration will be: 491,520\nstep 0: train loss 4.2874, val loss 4.2823\n"
        "iter 0: loss 4.2649, time 31337.18ms, mfu -100.00%\nstep 250: train loss 1.9, val loss nan\nstep 5 of 9 done\n"
    )
    assert training_log.is_training_log(text)
    log = training_log.read_training_log(text)
    assert [(p.line, p.name, p.step, p.value) for p in log.points] == [
        (2, "evaluated_loss", 0, 4.2874), (2, "heldout_loss", 0, 4.2823), (3, "loss", 0, 4.2649),
        (3, "step_milliseconds", 0, 31337.18), (4, "evaluated_loss", 250, 1.9),
    ]  # fmt: skip
    assert (log.nonfinite_lines, log.other_lines) == ((4,), 2)
    with pytest.raises(BadInputError, match="line 1: 'step 3: train loss' is not step N: train loss X, val loss Y"):
        training_log.read_training_log("step 3: train loss\n")


def test_an_accuracy_is_a_share_where_no_line_says_percent() -> None:
    assert training_log.read_training_log("ckpt1.pt, 2.0, 0.25\n").points[1].value == 0.25
    assert training_log.read_training_log("ckpt1.pt, 2.0, 0.25%\n").points[1].value == pytest.approx(0.0025)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("iter 5: loss 1.0, time 3ms\niter 6: loss", "line 2: 'iter 6: loss' is not iter N: loss X, time Yms"),
        ("ckpt4000.pt, 2.7\n", "line 1: .* is not ckptN.pt, loss, accuracy"),
        ("ckpt4000.pt, two, 25\n", "line 1: 'two' is not a number"),
        ("ckpt4000.pt, 2.7, 250\n", "line 1: an accuracy must be from 0 to 100 %, not 250"),
        ("ckpt4000.pt, 2.7, -3\n", "line 1: an accuracy"),
        ("iter 1: loss nan, time nanms\n", "no numeric loss"),
        ("iter 1: loss nan, time 3ms\n", "no numeric loss"),
        ("iter 1: loss 2, time -3ms\n", "line 1: a step must take 0 ms or more, not -3"),
    ],
)
def test_a_line_of_a_log_that_is_none_is_named(text: str, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        training_log.read_training_log(text)


def test_every_format_is_told_from_the_others_by_its_content(tmp_path) -> None:
    for name, text in (("sweep", "0,1,2,3\n"), ("training-log", LOG), ("training-log", "iter 1: loss x")):
        path = tmp_path / "file"
        path.write_text(text)
        assert find_format(path).name == name
        assert [f.name for f in FORMATS.values() if f.fits(text)] == [name]


@pytest.mark.parametrize(("text", "value"), [("1e3", 1000.0), ("", None), ("1e999", None), ("-1e999", None)])
def test_a_number_is_finite(text: str, value: float | None) -> None:
    assert parse_number(text) == value
