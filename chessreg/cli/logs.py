"""`chessreg logs`: what jobs have said, and say."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from chessreg.cli.base import Home, emit, json_option, pass_home
from chessreg.cli.fresh import fresh
from chessreg.cli.jobs import POLL_SECONDS, found, is_over, job_status
from chessreg.errors import NotFoundError


@click.command()
@click.argument("references", nargs=-1, required=True, metavar="JOB…")
@click.option("-f", "--follow", is_flag=True, help="Go on until the jobs end; Ctrl-C stops only the looking.")
@click.option("-n", "--lines", type=int, help="Only the last so many lines of each.")
@json_option
@pass_home
def logs(home: Home, references: tuple[str, ...], follow: bool, lines: int | None) -> None:
    """Print what jobs have said, over all their tries. --json prints one object a line when it follows.

    \b
    Example: chessreg logs -f 3f2a1c
    """
    files = log_files(home, references)
    read = {title: path.read_bytes() for title, path in files.items()}
    texts = {title: content.decode(errors="replace").splitlines() for title, content in read.items()}
    if lines is not None:
        texts = {title: text[-lines:] if lines else [] for title, text in texts.items()}
    if home.json and not follow:
        emit(home, [{"job": title, "path": files[title], "lines": text} for title, text in texts.items()])
        return
    for title, text in texts.items():
        for line in text:
            say_line(home, title if len(files) > 1 else "", line)
    if follow:
        follow_logs(home, references, files, {title: len(content) for title, content in read.items()})


def say_line(home: Home, title: str, line: str) -> None:
    if home.json:
        print(json.dumps({"job": title, "line": line}, ensure_ascii=False), flush=True)
    else:
        print(f"{title}: {line}" if title else line, flush=True)


def log_files(home: Home, references: tuple[str, ...]) -> dict[str, Path]:
    """Title of each job → its log. Raises NotFoundError where none has begun, or it lies on another machine."""
    from chessreg.scheduling import queue
    from chessreg.scheduling.executors import executor

    store = home.session().store
    with fresh(home).read() as session:
        wanted = found(session, references)
        files: dict[str, Path] = {}
        for each in wanted:
            path: Path | None = queue.folder_of(store, each) / "log.txt"
            if path is not None and not path.exists():
                path = executor(each.executor).logs(each.handle) if each.handle else None
            if path is not None and path.exists():
                files[f"{queue.title(each)} ({each.id.hex[-6:]})"] = path
    if not files:
        first = wanted[0]
        if first.tries:
            raise NotFoundError(f"the log is on {first.host}", f"chessreg logs {first.id.hex[-6:]} there")
        raise NotFoundError(f"{queue.title(first)} has not begun", f"chessreg job show {first.id.hex[-6:]}")
    return files


def follow_logs(home: Home, references: tuple[str, ...], files: dict[str, Path], at: dict[str, int]) -> None:
    """Print what is added, until no job of them runs or will."""
    over = False
    while True:
        for title, path in files.items():
            with path.open("rb") as file:
                file.seek(at[title])
                added = file.read()
            whole = added if over else added[: added.rfind(b"\n") + 1]
            at[title] += len(whole)
            for line in whole.decode(errors="replace").splitlines():
                say_line(home, title if len(files) > 1 else "", line)
        if over:
            return
        over = is_over(job_status(home, references))
        time.sleep(0.0 if over else POLL_SECONDS)
        for title, path in log_files(home, references).items():
            files.setdefault(title, path)
            at.setdefault(title, 0)
