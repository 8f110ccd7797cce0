"""The lab's model in a separate process, so that the event loop and the database worker never wait for it.

It handles one question at a time. Only the newest waiting question is answered, so holding a key down does not queue
work.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chessreg import child
from chessreg.errors import ChessregError

if TYPE_CHECKING:
    from chessreg.entities.vector import RelativeNorm
    from chessreg.lab.answer import LabAnswer
    from chessreg.lab.question import LabPosition, StoredState, VectorScales
    from chessreg.session import Session
    from tui.database_worker import DatabaseWorker

MAX_ANSWER_BYTES = 1 << 24  # bytes of one answer


class Environment(dict[str, str]):
    """Environment of a process that works on the app's registry and store."""

    @classmethod
    def from_session(cls, session: Session) -> Environment:
        """Return the environment in which child processes open the same registry and store as the session."""
        return cls(
            child.build_child_environment(),
            CHESSREG_REGISTRY=session.database.reference,
            CHESSREG_STORE=str(session.store.root),
        )


class ModelProcessError(ChessregError):
    """The error that the model process reports for a question."""


class ModelProcess:
    """Client of the model process, which starts with the first question and ends with the app."""

    def __init__(self, database: DatabaseWorker, read_only: bool = False) -> None:
        self._database, self._read_only = database, read_only
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._newest = 0
        self.commands: list[str] = []  # running commands
        self.has_answered = False  # whether the process has loaded a model

    async def ask(self, question: LabPosition | StoredState) -> LabAnswer | None:
        """Return the answer, or None if a newer question replaced this one. Raises ModelProcessError."""
        self._newest += 1
        exchange = asyncio.ensure_future(self._exchange(self._newest, question))
        exchange.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # even if the caller was cancelled
        return await asyncio.shield(exchange)

    async def measure_scales(self, run: str) -> list[RelativeNorm]:
        """Return the norms of the vectors of `run`, a name or id, next to those of the model's residuals.

        Raises ModelProcessError.
        """
        from chessreg.entities.vector import RelativeNorm
        from chessreg.lab.question import VectorScales

        async with self._turn:
            reply = await self._reply(0, VectorScales(run=run))
        return [RelativeNorm(*values) for values in get_answer(reply)]

    async def make_environment(self) -> Environment:
        """Return the environment of a process that uses the app's registry and store."""
        return await self._database.ask("opening the registry", Environment.from_session)

    async def run_command(self, words: Sequence[str]) -> tuple[int, str, str]:
        """Run a command of chessreg on the app's registry, in a process that ends with the app; return its status,
        stdout and stderr. Raises ModelProcessError in a read-only app."""
        if self._read_only:
            raise ModelProcessError("commands are not run with --read-only")
        command = shlex.join(["chessreg", *words])
        self.commands.append(command)
        try:
            process = await asyncio.create_subprocess_exec(
                *child.build_python_command("chessreg.cli", *words), env=await self.make_environment(),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
            output, err = await process.communicate()
        finally:
            self.commands.remove(command)
        return process.returncode or 0, output.decode(errors="replace"), err.decode(errors="replace")

    async def close(self) -> None:
        """End the process."""
        process, self._process, self.has_answered = self._process, None, False
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def _exchange(self, number: int, question: LabPosition | StoredState) -> LabAnswer | None:
        async with self._turn:
            if number != self._newest:
                return None
            reply = await self._reply(number, question)
        return await asyncio.to_thread(parse_answer, get_answer(reply))

    async def _reply(self, number: int, question: LabPosition | StoredState | VectorScales) -> dict[str, Any]:
        """Send a question to the process, starting it if needed, and return its reply. Raises ModelProcessError."""
        from chessreg.lab.question import StoredState, VectorScales

        noun = {StoredState: "state", VectorScales: "scales"}.get(type(question), "position")
        line = json.dumps({"id": number, noun: question.model_dump(mode="json")}) + "\n"
        process = await self._start_if_needed()
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(line.encode())
            await process.stdin.drain()
            answer_line = await process.stdout.readline()
        except (ConnectionError, ValueError) as error:
            await self.close()
            raise ModelProcessError("the model's process stopped responding", "r runs it again") from error
        if not answer_line:
            await self.close()
            raise ModelProcessError("the model's process has ended", "r starts it again")
        self.has_answered = True
        reply: dict[str, Any] = json.loads(answer_line)
        return reply

    async def _start_if_needed(self) -> asyncio.subprocess.Process:
        """Return the running process, a new one if there is none."""
        if self._process is None or self._process.returncode is not None:
            environment = await self.make_environment()
            self._process = await asyncio.create_subprocess_exec(
                *child.build_python_command("chessreg.lab.worker", environment["CHESSREG_STORE"]), env=environment,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
                limit=MAX_ANSWER_BYTES, start_new_session=True,
            )  # fmt: skip
        return self._process


def get_answer(reply: Mapping[str, Any]) -> Any:
    """Return the answer of a reply. Raises ModelProcessError if the reply is an error."""
    if "answer" not in reply:
        raise ModelProcessError(reply["message"], reply["hint"])
    return reply["answer"]


def parse_answer(values: Mapping[str, Any]) -> LabAnswer:
    """Return the answer that the process wrote as JSON. The first call imports NumPy, which takes 0.1 s: call it in a
    thread."""
    from chessreg.lab.answer import LabAnswer

    return LabAnswer.from_json(values)
