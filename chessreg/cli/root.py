"""The root command: its table of commands, global options, and errors in one line."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import click

from chessreg.cli.base import Home, LazyCommand, LazyGroup
from chessreg.errors import BadInputError, describe_error, find_custom_kind
from chessreg.named import clip_text
from chessreg.terminal import make_json_visible, make_streams_visible, make_visible

EXIT_PIPE_CLOSED = 141  # 128 + SIGPIPE, as shells report it
EXIT_INTERRUPTED = 130
MAX_ERROR_LENGTH = 1500  # characters of an error's line
COMPLETION_VARIABLE = "_CHESSREG_COMPLETE"  # the variable in which a shell asks for completions
MAX_HELP_WIDTH = 120  # characters; a narrower terminal decides

OF_NOUN = "chessreg.cli.noun:group_of"
SECTIONS: dict[str, dict[str, LazyCommand]] = {
    "Getting started": {
        "init": LazyCommand("chessreg.cli.db:init", "Create a registry and a store in this folder."),
        "demo": LazyCommand("chessreg.cli.demo:demo", "Run the main workflow once, on bundled games and models."),
        "doctor": LazyCommand("chessreg.cli.doctor:doctor", "Check this installation and print commands that fix it."),
        "completion": LazyCommand(
            "chessreg.cli.completion:completion", "Print the completion script for bash, zsh or fish."
        ),
    },
    "Games and models": {
        "dataset": LazyCommand(
            "chessreg.cli.dataset:dataset", "Add, fetch, generate, split and verify games and positions."
        ),
        "checkpoint": LazyCommand("chessreg.cli.checkpoint:checkpoint", "List, show and export models."),
        "import": LazyCommand("chessreg.cli.import_:import_", "Import checkpoints, probes, vectors, SAEs and results."),
        "fetch": LazyCommand("chessreg.cli.import_:fetch", "Download published models, games and positions."),
        "export": LazyCommand("chessreg.cli.transfer:export", "Write a checkpoint or runs for other tools."),
        "engine": LazyCommand("chessreg.cli.engine:engine", "List engines and the ladder of opponents."),
    },
    "Experiments": {
        "run": LazyCommand("chessreg.cli.run:run", "Run an experiment, or resume one."),
        "launch": LazyCommand("chessreg.cli.launch:launch", "Queue experiments as jobs that outlive this terminal."),
        "paper": LazyCommand("chessreg.cli.paper:paper", "Run a whole paper: its runs, then its tables and figures."),
        "runs": LazyCommand("chessreg.cli.runs:runs", "List, show, name, tag, note and invalidate runs."),
        "compare": LazyCommand("chessreg.cli.runs:compare", "Compare runs: what differs, and by how much."),
        "lineage": LazyCommand("chessreg.cli.reproduce:lineage", "Show the inputs and outputs of a run as a tree."),
        "reproduce": LazyCommand(
            "chessreg.cli.reproduce:reproduce", "Rerun and compare, or print a script that reruns."
        ),
        "invalidate": LazyCommand("chessreg.cli.noun:invalidate_run", "Mark a run as wrong: queries leave it out."),
        "unmark": LazyCommand("chessreg.cli.noun:unmark_run", "Clear the invalidation of a run."),
    },
    "Results": {
        "query": LazyCommand("chessreg.cli.query:query", "Print the papers' tables, or the answer to a SQL query."),
        "plot": LazyCommand("chessreg.cli.query:plot", "Draw the papers' figures."),
        "cache": LazyCommand("chessreg.cli.cache:cache", "List, show, verify and export activation caches."),
        "probe": LazyCommand(OF_NOUN, "List and show probes.", "probe"),
        "vector": LazyCommand(OF_NOUN, "List and show steering vectors.", "vector"),
        "sae": LazyCommand("chessreg.cli.sae:sae", "List, show, verify and export sparse autoencoders."),
        "elo": LazyCommand("chessreg.cli.elo:elo", "Print Elo and a sequential test from wins, draws and losses."),
        "game": LazyCommand("chessreg.cli.game:game", "List, show and export games that were played."),
    },
    "Boards and play": {
        "board": LazyCommand("chessreg.cli.board:board", "Draw a board of a game or a trial."),
        "heatmap": LazyCommand("chessreg.cli.board:heatmap", "Draw a probe's readings before and after an edit."),
        "lab": LazyCommand("chessreg.cli.lab:lab", "Show one position, clean and edited: boards, moves, legal mass."),
        "uci": LazyCommand("chessreg.cli.lab:uci", "Run a model, edited or not, as a UCI engine in a chess GUI."),
    },
    "Jobs": {
        "status": LazyCommand("chessreg.cli.status:status", "Show running jobs and runs on all machines."),
        "jobs": LazyCommand("chessreg.cli.jobs:jobs", "List jobs."),
        "job": LazyCommand("chessreg.cli.jobs:job", "Show one job."),
        "logs": LazyCommand("chessreg.cli.jobs:logs", "Show the log of a job."),
        "attach": LazyCommand("chessreg.cli.status:attach", "Follow jobs live: progress, rate, time left."),
        "wait": LazyCommand("chessreg.cli.jobs:wait", "Wait until jobs have ended."),
        "cancel": LazyCommand("chessreg.cli.jobs:cancel", "Cancel jobs; complete units are kept."),
        "retry": LazyCommand("chessreg.cli.jobs:retry", "Queue unfinished jobs again."),
        "priority": LazyCommand("chessreg.cli.jobs:priority", "Change the order in which queued jobs start."),
        "supervisor": LazyCommand("chessreg.cli.jobs:supervisor", "Start, stop and show the process that runs jobs."),
        "cluster": LazyCommand("chessreg.cli.cluster:cluster", "Connect machines over ssh into one Ray cluster."),
        "machines": LazyCommand("chessreg.cli.status:machines", "List machines: hosts, GPUs, drivers, last seen."),
    },
    "Registry and store": {
        "db": LazyCommand("chessreg.cli.db:db", "Create, upgrade and back up the registry's schema."),
        "merge": LazyCommand("chessreg.cli.transfer:merge", "Import the runs and results of another registry."),
        "push": LazyCommand("chessreg.cli.transfer:push", "Copy stored files to a shared folder or a bucket."),
        "pull": LazyCommand("chessreg.cli.transfer:pull", "Fetch stored files from a shared folder or a bucket."),
        "recover": LazyCommand("chessreg.cli.db:recover", "Import waiting results, and list damaged ones."),
        "gc": LazyCommand("chessreg.cli.db:gc", "Remove files that nothing refers to; rows are kept."),
        "config": LazyCommand("chessreg.cli.config:config", "Show and change a project's settings."),
        "mcp": LazyCommand("chessreg.agents:mcp", "Serve the registry to an AI agent (Model Context Protocol)."),
        "trust": LazyCommand("chessreg.cli.run:trust", "Trust a file with a kind or with Slurm profiles."),
    },
}
COMMANDS = {name: command for section in SECTIONS.values() for name, command in section.items()}
OTHERS = "Other commands"  # of the terminal UI and of installed packages
ANYWHERE = {"--registry": True, "--store": True, "--debug": False}  # option → whether it takes a value


class Root(LazyGroup):
    """The root group: commands of the table, of nouns, and of installed packages (entry points `chessreg.commands` and
    `chessreg.entities`)."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, lazy=COMMANDS, **settings)
        self._is_loaded = False

    def _load_entries(self) -> None:
        """Add nouns and the commands of installed packages; they cannot replace a command of the table."""
        if not self._is_loaded:
            from importlib.metadata import entry_points

            from chessreg.entities import list_nouns

            for entry in sorted(entry_points(group="chessreg.commands"), key=lambda entry: entry.name):
                text = "The terminal UI." if entry.name == "tui" else f"From {entry.dist.name if entry.dist else '?'}."
                self.lazy.setdefault(entry.name, LazyCommand(entry.value, text))
            for noun, text in list_nouns().items():
                self.lazy.setdefault(noun, LazyCommand(OF_NOUN, text, noun))
            self._is_loaded = True

    def list_commands(self, ctx: click.Context) -> list[str]:
        self._load_entries()
        return super().list_commands(ctx)

    def sections(self, ctx: click.Context) -> dict[str, list[str]]:
        others = [name for name in self.list_commands(ctx) if name not in COMMANDS]
        return {title: list(commands) for title, commands in SECTIONS.items()} | {OTHERS: others}

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return the command, or None if it does not exist. Raises ChessregError if `name` is a noun whose module is
        broken."""
        if name not in COMMANDS:
            self._load_entries()
        command = super().get_command(ctx, name)
        if command is None:
            from chessreg.entities import check_entity_module

            check_entity_module(name)  # a noun whose file is broken is not in the list
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with report_closed_pipe():
            return super().parse_args(ctx, move_options_to_front(args))

    def invoke(self, ctx: click.Context) -> Any:
        with report_closed_pipe():
            return super().invoke(ctx)


class PipeClosedError(Exception):
    """The reader of stdout closed it. Not an OSError, which click would answer with exit status 1."""


@contextmanager
def report_closed_pipe() -> Iterator[None]:
    """Raise PipeClosedError if the reader of standard output has closed it (as `head` does)."""
    try:
        yield
    except BrokenPipeError:
        raise PipeClosedError from None


def move_options_to_front(args: Sequence[str]) -> list[str]:
    """Return the arguments with --registry, --store and --debug moved to the front, unless they follow a `--`."""
    front: list[str] = []
    other_args: list[str] = []
    remaining_args = list(args)
    while remaining_args:
        word = remaining_args.pop(0)
        name, equals, _ = word.partition("=")
        if word == "--":
            return [*front, *other_args, word, *remaining_args]
        if name in ANYWHERE:
            front.append(word)
            if ANYWHERE[name] and not equals and remaining_args:
                front.append(remaining_args.pop(0))
        else:
            other_args.append(word)
    return front + other_args


def show_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Print version and code, then exit: the callback of `--version`."""
    if value:
        from chessreg.registry.provenance import describe_own_code, get_chessreg_version

        click.echo(f"chessreg {get_chessreg_version()}\n{describe_own_code()}")
        ctx.exit()


def refuse_blank(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty place: `--registry "$UNSET"` would otherwise mean the registry of this folder."""
    if value is not None and not value.strip():
        raise BadInputError(f"{parameter.opts[0]} is empty", f"leave {parameter.opts[0]} out")
    return value


@click.group(
    cls=Root,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": MAX_HELP_WIDTH},
)
@click.option(
    "--registry",
    metavar="URL",
    callback=refuse_blank,
    help="Path, folder or URL of the registry. When left out: CHESSREG_REGISTRY, else ./.chessreg/.",
)
@click.option(
    "--store",
    metavar="FOLDER",
    callback=refuse_blank,
    help="Folder of arrays and files. When left out: CHESSREG_STORE, else store/ next to the registry.",
)
@click.option("--debug", is_flag=True, help="Print the traceback of an error.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Print the version and the code's commit or digest.",
)
@click.pass_context
def root(ctx: click.Context, registry: str | None, store: str | None, debug: bool) -> None:
    """Run experiments on chess-playing language models and trace every number back to the model, data, code and machine
    that produced it.

    --registry, --store and --debug are accepted anywhere in the command line. `chessreg COMMAND --help` describes one
    command.

    \b
    Exit status: 0 done, 1 failed or incomplete, 2 wrong usage, 3 not found, 4 bad input,
    130 interrupted, 141 output closed. With --json, stdout is one JSON document and an
    error is one on stderr: {"error", "hint", "code"}.
    """
    gc.enable()  # the command is imported now
    if ctx.obj is None or registry is not None or store is not None:  # a command that calls others hands its home on
        ctx.obj = Home(registry, store, debug=debug)
        ctx.call_on_close(ctx.obj.close)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run_command_line(args: Sequence[str]) -> int:
    """Run one command line and return its exit status. Errors become one line on stderr, never a traceback."""
    with make_streams_visible():
        return run_root_command(args)


def run_root_command(args: Sequence[str]) -> int:
    """Run the root command with these arguments, print an error as one line, and return the exit status."""
    try:
        require_text(args)
        status = root.main(args=list(args), prog_name="chessreg", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.UsageError as error:
        hint = f"{error.ctx.command_path} --help" if error.ctx else "chessreg --help"
        return print_error(args, describe_usage_error(error), hint, 2)
    except click.ClickException as error:
        return print_error(args, error.format_message(), "", error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return print_error(args, "interrupted", "", EXIT_INTERRUPTED)
    except (PipeClosedError, BrokenPipeError):
        return end_after_closed_pipe()
    except SystemExit as error:
        if find_custom_kind(error) is not None:  # a kind that ends the process has failed, with any exit status
            return print_error(args, *describe_error(error))
        return error.code if isinstance(error.code, int) else int(bool(error.code))
    except Exception as error:
        if "--debug" in args:
            import traceback

            traceback.print_exc()
        return print_error(args, *describe_error(error))
    return status if isinstance(status, int) else 0  # an int: ctx.exit(status)


def describe_usage_error(error: click.UsageError) -> str:
    """Return the message of a usage error; for an unknown option it suggests existing ones."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error.format_message()
    from chessreg.cli.suggest import suggest_options

    suggestions = suggest_options(error.ctx.command, error.option_name)
    hint = f"; did you mean {' or '.join(suggestions)}?" if suggestions else ""
    return f"{error.ctx.command_path} has no option {error.option_name}{hint}"


def require_text(args: Sequence[str]) -> None:
    """Raise BadInputError for an argument that is not UTF-8: registries record names and paths as text."""
    for word in args:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise BadInputError(f"the argument {word!a} is not UTF-8", "rename that file to UTF-8") from None


def print_error(args: Sequence[str], message: str, hint: str, code: int) -> int:
    """Print `message` and `hint` on stderr, as JSON if `args` contain --json. Returns `code`, the exit status."""
    from chessreg.masking import mask

    message, hint = clip_text(mask(message), MAX_ERROR_LENGTH), clip_text(mask(hint), MAX_ERROR_LENGTH)
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    if "--json" in args:
        document = {"error": message, "hint": hint, "code": code}
        print(make_json_visible(json.dumps(document, ensure_ascii=False)), file=sys.stderr)
        return code
    line = make_visible(" ".join(message.split()))
    print(line if code == EXIT_INTERRUPTED else f"error: {line}", file=sys.stderr)
    if hint:
        print(f"hint: {make_visible(hint)}", file=sys.stderr)
    return code


def end_after_closed_pipe() -> int:
    """End without a message, also when Python flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_PIPE_CLOSED
