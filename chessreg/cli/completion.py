"""`chessreg completion`: shell completion of commands, options, and names of entities in the registry."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from chessreg.cli.root import ANYWHERE, COMPLETION_VARIABLE, move_options_to_front, root

if TYPE_CHECKING:
    from types import FrameType

    from chessreg.registry.place import RegistryPlace

SHELLS = ("bash", "zsh", "fish")
TIME_LIMIT_S = 0.5  # for reading the registry
BUSY_S = 0.1
MOST_NAMES = 1000
KIND_NAME = re.compile(r'^    name = "([a-z0-9-]+)"$', re.MULTILINE)

NAMED_NOUNS = ("run", "dataset", "checkpoint")  # nouns whose entities have names
MADE_BY_RUNS = {  # noun → its table, whose entities go by the name of their run
    "checkpoint": "checkpoint",
    "cache": "activation_cache",
    "probe": "probe",
    "vector": "vector",
    "sae": "sae",
}
KINDS = ("play", "engine-match")  # options that take a run of this kind
NOUNS = frozenset((*NAMED_NOUNS, *MADE_BY_RUNS, *KINDS))
OPTIONS = {  # that are not called after the noun that they take
    "--against": "run",
    "--heldout": "dataset",
    "--heldout-source-games": "dataset",
    "--of": "vector",
    "--resume": "run",
    "--source-games": "dataset",
    "--unseen-of": "dataset",
}
OF_RUN = ("compare", "invalidate", "lineage", "reproduce", "unmark")  # commands whose arguments are runs
WITHOUT_NAME = ("add", "fetch", "generate", "import", "list")  # commands of a noun whose argument is not a name of it

NAMES = "SELECT DISTINCT value FROM annotation_now WHERE noun = '{noun}' AND word = 'name'"
OF_RUNS = NAMES.format(noun="run") + " AND target IN (SELECT replace(CAST({column} AS text), '-', '') FROM {source})"


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands, options and names when you press Tab.

    The script completes the names of runs, datasets, checkpoints, caches, probes, vectors, autoencoders, queries, plots
    and kinds. It reads the registry of the current folder, CHESSREG_REGISTRY or --registry, and changes nothing.

    \b
    bash: add to ~/.bashrc                 eval "$(chessreg completion bash)"
    zsh:  add to ~/.zshrc, after compinit  eval "$(chessreg completion zsh)"
    fish: write the file once
          chessreg completion fish > ~/.config/fish/completions/chessreg.fish
    """
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(root, {}, "chessreg", COMPLETION_VARIABLE).source())


def answer_completion() -> int:
    """Answer the script: print the completions of the command line in its variables.

    Returns the exit status. Nothing is written to stderr, which would appear in the line that the user types.
    """
    shell, _, instruction = os.environ[COMPLETION_VARIABLE].partition("_")
    script = get_completion_class(shell)
    if script is None or instruction != "complete":
        return 1
    sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (for the rest of the process)
    with suppress(Exception):
        completion_script = script(root, {}, "chessreg", COMPLETION_VARIABLE)
        args, word = completion_script.get_completion_args()
        names = complete_names(args, word)
        items = completion_script.get_completions(args, word) if names is None else names
        click.echo("\n".join(completion_script.format_completion(item) for item in items).encode())
    return 0


def complete_names(args: Sequence[str], incomplete: str) -> list[CompletionItem] | None:
    """Return the names that may follow these arguments, sorted; None if no name is expected.

    Only the arguments are read, because importing a command takes longer than a user waits. In a list `a,b,c` the last
    name is completed.
    """
    registry, words = split_registry_option(args)
    prefix, comma, typed_prefix = incomplete.rpartition(",")
    if incomplete.startswith("-"):
        return None
    if noun := find_expected_noun(words):
        from chessreg.registry.place import resolve_place

        names = read_names(resolve_place(registry), list(make_name_statements(noun)))
    elif words in (["query"], ["plot"]):
        from chessreg.queries.catalogue import list_entries

        plots = [plot.title for entry in list_entries() for plot in entry.plots]
        titles = [entry.title for entry in list_entries()] if words == ["query"] else plots
        names = [title.replace(" ", "-") for title in titles]  # needs no quotes, and means the same
    elif words[-1:] == ["--kind"]:
        names = list_kind_names()
    else:
        return None
    return [CompletionItem(f"{prefix}{comma}{name}") for name in sorted(set(names)) if name.startswith(typed_prefix)]


def split_registry_option(args: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the value of --registry, and the arguments without the options that are accepted anywhere."""
    words, registry = move_options_to_front(args), None
    while words and (option := words[0].partition("="))[0] in ANYWHERE:
        del words[0]
        value = option[2] if option[1] else words.pop(0) if ANYWHERE[option[0]] and words else None
        registry = value if option[0] == "--registry" else registry
    return registry, words


def find_expected_noun(words: Sequence[str]) -> str:
    """Return the noun whose name may follow these words; empty if none is expected.

    >>> find_expected_noun(["run", "play", "--intervention.vector"])
    'vector'
    >>> find_expected_noun(["dataset", "show"])
    'dataset'
    """
    if words and words[-1].startswith("--"):
        return OPTIONS.get(words[-1]) or as_noun(re.split(r"[-.]", words[-1])[-1])
    command, *other_words = words or [""]
    if command in OF_RUN:
        return "run"
    return as_noun(command) if command != "run" and len(other_words) == 1 and other_words[0] not in WITHOUT_NAME else ""


def as_noun(word: str) -> str:
    return next((noun for noun in (word, word.removesuffix("s")) if noun in NOUNS), "")


def make_name_statements(noun: str) -> Iterator[str]:
    """Return SELECT statements for the names of a noun's entities."""
    if noun in NAMED_NOUNS:
        yield NAMES.format(noun=noun)
    if noun in MADE_BY_RUNS:
        yield OF_RUNS.format(column="run_id", source=MADE_BY_RUNS[noun])
    if noun in KINDS:
        yield OF_RUNS.format(column="id", source=f"run WHERE kind = '{noun}'")


def read_names(place: RegistryPlace, statements: list[str]) -> list[str]:
    """Return the rows of these SELECT statements, read-only; none if the registry does not exist or does not answer
    within TIME_LIMIT_S."""
    names: list[str] = []
    with suppress(Exception), limit_time(TIME_LIMIT_S), closing(connect_read_only(place)) as connection:
        for statement in statements:
            cursor = connection.cursor()
            cursor.execute(f"{statement} ORDER BY value LIMIT {MOST_NAMES}")
            names += [value for (value,) in cursor.fetchall()]
    return names


def connect_read_only(place: RegistryPlace) -> Any:
    """Open a connection with the database's own driver, because importing SQLAlchemy takes longer than a user waits for
    Tab."""
    if place.path is None:
        import psycopg

        return psycopg.connect(place.reference.replace("postgresql+psycopg", "postgresql", 1), connect_timeout=1)
    from chessreg.registry.sqlite import dbapi, make_sqlite_uri

    log = place.path.with_name(f"{place.path.name}-wal")
    mode = "ro" if log.exists() else "ro&immutable=1"  # without a log no process writes; "ro" alone would create one
    connection = dbapi.connect(make_sqlite_uri(place.path, mode), uri=True, timeout=BUSY_S)
    connection.set_progress_handler(
        lambda: 0, 10_000
    )  # Python must run now and then for the time limit to end a SELECT
    return connection


@contextmanager
def limit_time(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block after this time."""

    def raise_timeout(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def list_kind_names() -> list[str]:
    """Return the names of the kinds of experiment without importing them, which takes seconds."""
    from pathlib import Path

    from chessreg import experiments, plugins

    texts = (path.read_text(encoding="utf-8") for folder in experiments.__path__ for path in Path(folder).rglob("*.py"))
    kind_names = {name for text in texts for name in KIND_NAME.findall(text)}
    return sorted(kind_names | {point.name for point in plugins.list_entry_points("chessreg.kinds")})
