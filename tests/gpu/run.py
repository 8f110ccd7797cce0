"""Check and measure chessreg on a GPU, and train a model with the time that is left, in one command.

    python tests/gpu/run.py --minutes 8 [--games FILE.npz] [--only STEP ...] [--out gpu-report]

Needs Python 3.12, torch, numpy and safetensors. FILE is a token file of `dataset export --token-file`; without it
no model is trained. The folder gets report.json and report.md, rewritten after every measurement, and model/, a Hugging
Face folder with float16 shards that `chessreg import checkpoint` reads.

The steps, in this order: correctness against the CPU; speed of training, sparse autoencoders, caching, decoding and
legal-move scoring; training. `--only` does some of them. A step ends when its share of the time is used up; a
measurement that fails is recorded with its error and the next one follows. SIGTERM and SIGINT end the command early,
with its results so far. Exit status: 0; 1 if a measurement failed; 2, 3 or 4 for bad input, before anything is written;
128 + the signal's number.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

STARTED = time.monotonic()
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

RESCUE_S = 30.0  # for writing the model after a signal
SHARES: dict[str, float | None] = {
    "correctness": 0.08,
    "matrix products": 0.03,
    "training speed, 12 x 768": 0.13,
    "sparse autoencoder": 0.15,
    "caching": 0.05,
    "decoding": 0.05,
    "legal moves": 0.03,
    "training speed, 8 x 512": 0.10,
    "training": None,
}
"""Steps, and the largest share of the time each may take; the last one may take everything that is left."""


class OutOfTime(BaseException):
    """The measurement has to end. Not an Exception, so that no handler inside torch swallows it."""


class Interrupter:
    """Ends the measurement in hand when its time is used up, or when SIGTERM or SIGINT arrives (`signal`, else 0)."""

    def __init__(self) -> None:
        self.signal = 0
        self.active = False
        self.ends_by_itself: Callable[[], bool] = lambda: False
        """Whether the measurement in hand looks at `signal`, and ends soon."""
        signal.signal(signal.SIGALRM, self._ring)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    @contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Raise OutOfTime in the block after this many seconds, or after a signal."""
        self.active = True
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
        try:
            if self.signal:
                raise OutOfTime
            yield
        finally:
            self.active = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _stop(self, number: int, _: Any) -> None:
        if not self.signal:
            self.signal = number
            if not self.ends_by_itself():
                signal.setitimer(signal.ITIMER_REAL, 0.001)

    def _ring(self, _: int, frame: FrameType | None) -> None:
        if not self.active:
            return
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib"):  # half a package would be left behind
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                return
            frame = frame.f_back
        raise OutOfTime


def main() -> int:
    options = arguments()
    if missing := [name for name in ("numpy", "torch", "safetensors") if importlib.util.find_spec(name) is None]:
        return refuse(f"{sys.executable} has no package {missing[0]}", "run it with the Python that has PyTorch")
    from chessreg.errors import ChessregError
    from chessreg.models.token_file import TokenFile

    try:
        games = TokenFile.read(options.games) if options.games else None
    except ChessregError as error:
        return refuse(f"--games: {error.message}", error.hint, error.exit_code)
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        hint = "run it on a machine with an NVIDIA GPU, or add --device cpu --tiny to try it here"
        return refuse("--device cuda: PyTorch finds no CUDA device", hint)
    import context
    from report import Report

    setting = context.Context(torch.device(options.device), context.TINY if options.tiny else context.FULL)
    try:
        if options.out.exists() and (not options.out.is_dir() or any(options.out.iterdir())):
            return refuse(f"--out {options.out} exists already", f"rm -r {options.out}, or give another folder")
        options.out.mkdir(parents=True, exist_ok=True)
        machine = context.describe_machine(setting.device, ROOT, sys.argv[1:])
        report = Report(options.out, machine, options.minutes, STARTED)
    except OSError as error:
        hint = "give a folder that can be written"
        return refuse(f"--out {options.out} cannot be written: {error.strerror}", hint)
    stopped = measure(setting, report, games, options, STARTED + 60 * options.minutes)
    print(report.format_markdown())
    return 128 + stopped if stopped else int(report.has_errors)


def measure(setting: Any, report: Any, games: Any, options: argparse.Namespace, deadline: float) -> int:
    """Do the steps of `--only`, or all; returns the number of the signal that ended them early, or 0."""
    import correctness
    import speed
    import training

    interrupter = Interrupter()
    fit = training.Fit(setting, games, options.out / "model", lambda: bool(interrupter.signal), options.dropout)
    interrupter.ends_by_itself = lambda: fit.updating
    steps = {
        "correctness": correctness.plan_comparisons(setting),
        **speed.plan_steps(setting),
        "training": fit.plan_measurements(deadline),
    }
    for name, measurements in steps.items():
        if name not in (options.only or steps):
            continue
        share = SHARES[name]
        end = deadline if share is None else min(time.monotonic() + share * (deadline - STARTED), deadline)
        run_step(report, name, measurements, end, setting, interrupter)
        if interrupter.signal:
            break
    number = interrupter.signal
    if number:
        report.interrupt(signal.Signals(number).name)
        interrupter.signal = 0  # another one ends the last step
        run_step(report, "after the signal", fit.plan_rescue(), time.monotonic() + RESCUE_S, setting, interrupter)
    report.finish()
    return number


def run_step(
    report: Any, name: str, measurements: Iterator[tuple[str, Any]], end: float, setting: Any, interrupter: Interrupter
) -> None:
    """Do the measurements of a step one by one until `end` or a signal, and record each."""
    step = report.begin(name)
    late = []
    try:
        for label, work in measurements:
            if interrupter.signal:
                break
            if time.monotonic() < end:
                run_measurement(report, step, label, work, end, interrupter)
                setting.release()
            else:
                late.append(label)
    except Exception as error:  # the step itself could not be prepared
        traceback.print_exc()
        report.record(step, name, error=f"{type(error).__name__}: {error}")
    if late:
        report.record(step, "; ".join(late), left_out="no time left")


def run_measurement(report: Any, step: Any, label: str, work: Any, end: float, interrupter: Interrupter) -> None:
    """Do one measurement until `end` at most, and record its values, its error or why it is left out."""
    from report import LeftOut

    began = time.monotonic()
    values, error, left_out = None, "", ""
    try:
        with interrupter.limit(end - began):
            values = work()
    except OutOfTime:
        left_out = "interrupted" if interrupter.signal else "it took longer than the time of its step"
    except LeftOut as reason:
        left_out = str(reason)
    except ModuleNotFoundError as missing:
        left_out = f"the package {missing.name} is not installed"
    except Exception as failure:
        traceback.print_exc()
        error = f"{type(failure).__name__}: {failure}"
    report.record(step, label, time.monotonic() - began, values, error, left_out)


def arguments() -> argparse.Namespace:
    def minutes(text: str) -> float:
        number = float(text)
        if not (math.isfinite(number) and 0 < number <= 24 * 60):
            raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1440")
        return number

    parser = argparse.ArgumentParser(
        description="Check and measure chessreg on a GPU, and train a model with the time that is left."
    )
    parser.add_argument(
        "--minutes", type=minutes, default=8.0, help="total time, start to end, in minutes (default: 8)"
    )
    parser.add_argument(
        "--games", type=Path, metavar="FILE", help="token file to train on (default: nothing is trained)"
    )
    parser.add_argument(
        "--dropout", type=float, default=0.0, help="of that training; 0.1 if it sees each game often (default: 0)"
    )
    parser.add_argument(
        "--only", nargs="+", choices=[*SHARES], metavar="STEP", help=f"steps to do (default: all): {', '.join(SHARES)}"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-report"), metavar="FOLDER", help="new folder for the report and the model"
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="where to run (default: cuda)")
    parser.add_argument("--tiny", action="store_true", help="tiny models and few repetitions, to try the command")
    return parser.parse_args()


def refuse(problem: str, hint: str, status: int = 2) -> int:
    print(f"error: {problem}\nhint: {hint}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
