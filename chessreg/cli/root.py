"""The root command: its table of commands, the options that may stand anywhere, and errors in one line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any

import click

from chessreg.cli.base import Home, LazyCommand, LazyGroup
from chessreg.errors import BadInputError, described, of_own_kind
from chessreg.masking import mask
from chessreg.named import clipped
from chessreg.terminal import visible, visible_json, visible_streams

PIPE_CLOSED = 141  # 128 + SIGPIPE, as a shell says it of any program
INTERRUPTED = 130
LONGEST = 1500  # characters of an error's line

OF_NOUN = "chessreg.cli.noun:group_of"
COMMANDS = {
    "init": LazyCommand("chessreg.cli.db:init", "Make the registry and the store of this folder."),
    "doctor": LazyCommand("chessreg.cli.doctor:doctor", "Show what is missing here, and the command that mends it."),
    "db": LazyCommand("chessreg.cli.db:db", "Make, upgrade and back up the registry's schema."),
    "demo": LazyCommand("chessreg.cli.demo:demo", "Run the main job once, on the bundled games and model."),
    "dataset": LazyCommand(
        "chessreg.cli.dataset:dataset", "Add, fetch, generate, split and verify games and positions."
    ),
    "import": LazyCommand("chessreg.cli.import_:import_", "Bring in checkpoints, probes, vectors, results from files."),
    "fetch": LazyCommand("chessreg.cli.import_:fetch", "Fetch and import others' models, games and positions."),
    "export": LazyCommand("chessreg.cli.transfer:export", "Write a checkpoint for other tools."),
    "checkpoint": LazyCommand("chessreg.cli.checkpoint:checkpoint", "List, show and export models."),
    "run": LazyCommand("chessreg.cli.run:run", "Run an experiment, or go on with one."),
    "runs": LazyCommand("chessreg.cli.runs:runs", "List, show, name, tag, note and invalidate runs."),
    "launch": LazyCommand("chessreg.cli.launch:launch", "Queue experiments as jobs that outlive this terminal."),
    "status": LazyCommand("chessreg.cli.status:status", "Show what runs now, everywhere, and what has ended since."),
    "jobs": LazyCommand("chessreg.cli.jobs:jobs", "List jobs."),
    "job": LazyCommand("chessreg.cli.jobs:job", "Show one job."),
    "logs": LazyCommand("chessreg.cli.jobs:logs", "Show the log of a job."),
    "attach": LazyCommand("chessreg.cli.status:attach", "Follow jobs live: progress, rate, time left."),
    "wait": LazyCommand("chessreg.cli.jobs:wait", "Wait until jobs have ended."),
    "cancel": LazyCommand("chessreg.cli.jobs:cancel", "End jobs; complete units are kept."),
    "retry": LazyCommand("chessreg.cli.jobs:retry", "Queue jobs again that did not finish."),
    "priority": LazyCommand("chessreg.cli.jobs:priority", "Let queued jobs start before others."),
    "supervisor": LazyCommand("chessreg.cli.jobs:supervisor", "Start, stop and show the process that runs jobs here."),
    "recover": LazyCommand("chessreg.cli.db:recover", "Take in results that wait, and show damaged ones."),
    "cache": LazyCommand(OF_NOUN, "List, show and verify activation caches.", "cache"),
    "probe": LazyCommand(OF_NOUN, "List and show probes.", "probe"),
    "vector": LazyCommand(OF_NOUN, "List and show directions.", "vector"),
    "lineage": LazyCommand(
        "chessreg.cli.reproduce:lineage", "Show what a thing was made from, and what was made from it."
    ),
    "compare": LazyCommand("chessreg.cli.runs:compare", "Compare runs: what differs, and by how much."),
    "invalidate": LazyCommand("chessreg.cli.noun:invalidate_run", "Mark a run as wrong: no query counts it."),
    "validate": LazyCommand("chessreg.cli.noun:validate_run", "Remove the mark that a run is wrong."),
    "reproduce": LazyCommand("chessreg.cli.reproduce:reproduce", "Rerun and compare, or show how a run was made."),
    "merge": LazyCommand("chessreg.cli.transfer:merge", "Take in what another registry has."),
    "push": LazyCommand("chessreg.cli.transfer:push", "Copy bytes to a folder or a bucket that others reach."),
    "pull": LazyCommand("chessreg.cli.transfer:pull", "Fetch bytes that are elsewhere."),
    "config": LazyCommand("chessreg.cli.config:config", "Show and change a project's settings."),
    "trust": LazyCommand("chessreg.cli.run:trust", "Trust a file with a kind or with Slurm profiles."),
    "machines": LazyCommand("chessreg.cli.status:machines", "List machines: hosts, GPUs, drivers, last seen."),
    "gc": LazyCommand("chessreg.cli.db:gc", "Remove bytes that nothing needs any more; never rows."),
    "query": LazyCommand("chessreg.cli.query:query", "Print the papers' tables, or SQL of your own."),
    "plot": LazyCommand("chessreg.cli.query:plot", "Draw the papers' figures."),
    "paper": LazyCommand("chessreg.cli.paper:paper", "Run a whole paper: its runs, then its tables and figures."),
    "game": LazyCommand("chessreg.cli.game:game", "List, show and export games that were played."),
    "board": LazyCommand("chessreg.cli.board:board", "Draw a board of a game or a trial."),
    "heatmap": LazyCommand("chessreg.cli.board:heatmap", "Draw what a probe reads before and after an edit."),
    "lab": LazyCommand("chessreg.cli.lab:lab", "Show one position, clean and edited: boards, moves, legal mass."),
    "uci": LazyCommand("chessreg.cli.lab:uci", "Run a model, edited or not, as a UCI engine in a chess GUI."),
    "engine": LazyCommand("chessreg.cli.engine:engine", "List engines and the ladder of opponents."),
}
ANYWHERE = {"--registry": True, "--store": True, "--debug": False}  # option → whether it takes a value


class Root(LazyGroup):
    """Commands of the table, those of nouns, and those that other packages bring (entry points `chessreg.commands`
    and `chessreg.entities`)."""

    meant = MappingProxyType(dict.fromkeys(("sql", "select"), "query --sql"))

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, lazy=COMMANDS, **settings)
        self._looked = False

    def _look(self) -> None:
        """Add nouns and the commands of installed packages; a name of the table cannot be taken."""
        if not self._looked:
            from importlib.metadata import entry_points

            from chessreg.entities import nouns

            for entry in sorted(entry_points(group="chessreg.commands"), key=lambda entry: entry.name):
                text = "The terminal UI." if entry.name == "tui" else f"From {entry.dist.name if entry.dist else '?'}."
                self.lazy.setdefault(entry.name, LazyCommand(entry.value, text))
            for noun, text in nouns().items():
                self.lazy.setdefault(noun, LazyCommand(OF_NOUN, text, noun))
            self._looked = True

    def list_commands(self, ctx: click.Context) -> list[str]:
        self._look()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            self._look()
        command = super().get_command(ctx, name)
        if command is None:
            from chessreg.entities import check_file

            check_file(name)  # a noun whose file is broken is not in the list
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with closed_pipe_reported():
            return super().parse_args(ctx, hoisted(args))

    def invoke(self, ctx: click.Context) -> Any:
        with closed_pipe_reported():
            return super().invoke(ctx)


class PipeClosedError(Exception):
    """Who read our output has had enough. No OSError: click would answer that itself, with exit status 1."""


@contextmanager
def closed_pipe_reported() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise PipeClosedError from None


def hoisted(args: Sequence[str]) -> list[str]:
    """The arguments with --registry, --store and --debug moved to the front, wherever they stood before a `--`."""
    front: list[str] = []
    rest: list[str] = []
    left = list(args)
    while left:
        word = left.pop(0)
        name, equals, _ = word.partition("=")
        if word == "--":
            return [*front, *rest, word, *left]
        if name in ANYWHERE:
            front.append(word)
            if ANYWHERE[name] and not equals and left:
                front.append(left.pop(0))
        else:
            rest.append(word)
    return front + rest


def show_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        from chessreg.registry.provenance import chessreg_version

        click.echo(f"chessreg {chessreg_version()}")
        ctx.exit()


def no_blank(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse a place that is given and names nothing: `--registry "$UNSET"` would be the registry of this folder."""
    if value is not None and not value.strip():
        raise BadInputError(f"{parameter.opts[0]} is empty, and names no place", f"leave {parameter.opts[0]} out")
    return value


@click.group(cls=Root, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--registry",
    metavar="URL",
    callback=no_blank,
    help="Path, folder or URL of the registry [CHESSREG_REGISTRY if not empty, else ./.chessreg/].",
)
@click.option(
    "--store",
    metavar="FOLDER",
    callback=no_blank,
    help="Folder of arrays and files [CHESSREG_STORE if not empty, else beside the registry].",
)
@click.option("--debug", is_flag=True, help="Show where an error arose.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=show_version, help="Print the version."
)
@click.pass_context
def root(ctx: click.Context, registry: str | None, store: str | None, debug: bool) -> None:
    """Experiments on chess-playing language models: run them, and say a year later what made each number.

    --registry, --store and --debug may stand anywhere in the line.
    """
    if ctx.obj is None or registry is not None or store is not None:  # a command that calls others hands its home on
        ctx.obj = Home(registry, store, debug=debug)
        ctx.call_on_close(ctx.obj.close)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run_command_line(args: Sequence[str]) -> int:
    """Run one command line and return its exit status. Errors become one line on stderr, never a traceback."""
    with visible_streams():
        return answered(args)


def answered(args: Sequence[str]) -> int:
    try:
        require_text(args)
        status = root.main(args=list(args), prog_name="chessreg", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.UsageError as error:
        hint = f"{error.ctx.command_path} --help" if error.ctx else "chessreg --help"
        return fail(args, error.format_message(), hint, 2)
    except click.ClickException as error:
        return fail(args, error.format_message(), "", error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return fail(args, "interrupted", "", INTERRUPTED)
    except (PipeClosedError, BrokenPipeError):
        return pipe_closed()
    except SystemExit as error:
        if of_own_kind(error) is not None:  # a kind that ends the process has not done its work, whatever its status
            return fail(args, *described(error))
        return error.code if isinstance(error.code, int) else int(bool(error.code))
    except Exception as error:
        if "--debug" in args:
            import traceback

            traceback.print_exc()
        return fail(args, *described(error))
    return status if isinstance(status, int) else 0  # an int: ctx.exit(status)


def require_text(args: Sequence[str]) -> None:
    """Raise BadInputError for an argument that is not UTF-8: registries record names and paths as text."""
    for word in args:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise BadInputError(f"the argument {word!a} is not UTF-8", "rename that file to UTF-8") from None


def fail(args: Sequence[str], message: str, hint: str, code: int) -> int:
    """Say on stderr what went wrong, for a person or (--json) for a program; returns the code."""
    message, hint = clipped(mask(message), LONGEST), clipped(mask(hint), LONGEST)
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    if "--json" in args:
        document = {"error": message, "hint": hint, "code": code}
        print(visible_json(json.dumps(document, ensure_ascii=False)), file=sys.stderr)
        return code
    line = visible(" ".join(message.split()))
    print(line if code == INTERRUPTED else f"error: {line}", file=sys.stderr)
    if hint:
        print(f"hint: {visible(hint)}", file=sys.stderr)
    return code


def pipe_closed() -> int:
    """End without a word, also when Python flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED
