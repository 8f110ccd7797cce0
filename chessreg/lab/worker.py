"""The process that holds the lab's model: `python -m chessreg.lab.worker STORE`.

CHESSREG_REGISTRY has the registry's URL, because every user of the machine can read a command line, and a URL may
contain a password.

The process reads one question per line and writes one answer per line, both as JSON. {"id": 1, "position": {…}} or
{"id": 1, "state": {…}} is answered by {"id": 1, "answer": {…}} or {"id": 1, "message": "…", "hint": "…"}. It ends when
its input ends.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from chessreg.lab.question import LabPosition, StoredState, VectorScales

if TYPE_CHECKING:
    from chessreg.lab.model import Lab


def main(arguments: list[str]) -> None:
    """Answer questions from standard input on standard output until the input ends. `arguments`: the store's folder."""
    [store] = arguments
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # keeps the output of libraries out of the answers
    serve_questions(sys.stdin, answers, os.environ["CHESSREG_REGISTRY"], Path(store))


def serve_questions(questions: IO[str], answers: IO[str], registry: str, store: Path, threads: int = 0) -> None:
    """Answer each line of `questions` (JSON) with a line of `answers`: an answer, or an error as message and hint."""
    lab: Lab | None = None
    for line in questions:
        request = json.loads(line)
        try:
            if lab is None:
                lab = open_lab(registry, store, threads)
            question = parse_question(request)
            if isinstance(question, VectorScales):
                answer = json.dumps(lab.measure_scales(question))
            else:
                answer = lab.ask(question).as_json()
            reply = f'{{"id": {int(request["id"])}, "answer": {answer}}}'
        except Exception as error:
            reply = json.dumps({"id": request["id"], **describe_worker_error(error)})
        answers.write(reply + "\n")
        answers.flush()


def open_lab(registry: str, store: Path, threads: int) -> Lab:
    """Return a lab on an existing registry and store."""
    from chessreg.lab.model import Lab
    from chessreg.models.devices import count_idle_cores, prepare_device
    from chessreg.registry.database import Database
    from chessreg.runs.inputs import Inputs
    from store import Store

    prepare_device("cpu", threads or count_idle_cores())
    database = Database.open(registry, create=False)
    database.read_only = True
    return Lab(Inputs(database, Store(store, read_only=True)))


def parse_question(request: dict[str, Any]) -> Any:
    """Return the question of a request: a state of an edit run, the scales of a vector run, or a position."""
    if "scales" in request:
        return VectorScales(**request["scales"])
    return StoredState(**request["state"]) if "state" in request else LabPosition.from_settings(**request["position"])


def describe_worker_error(error: Exception) -> dict[str, str]:
    """Return an error as `message` and `hint`; errors of other libraries with their class."""
    message = getattr(error, "message", None)
    if message is not None:
        return {"message": str(message), "hint": str(getattr(error, "hint", "") or "")}
    return {"message": f"{type(error).__name__}: {error}", "hint": ""}


if __name__ == "__main__":
    gc.set_threshold(100_000, 20, 20)  # imports create many objects and no garbage
    main(sys.argv[1:])
