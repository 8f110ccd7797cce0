"""Write the generated pages of the documentation site: reference pages, and copies of the project's root documents.

mkdocs-gen-files runs this file. Every page is generated from output of the program: click's commands, the JSON of
`query --list` and `query --columns`, and answers on the small registry of tests/fixtures/demo.
"""

from __future__ import annotations

import inspect
import re
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import mkdocs_gen_files
from mkdocs_click._docs import make_command_docs

import chessreg
import chessreg.api
import chessreg.kinds
from chessreg.cli.root import root as commands

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "tests/fixtures/demo/demo.zip"
MEMBERS = {  # of the page "Python"
    "chessreg": ["open", "init"],
    "chessreg.api": ["Registry", "Table"],
    "chessreg.rows": ["Rows"],
}


def write(path: str, lines: Iterable[str]) -> None:
    with mkdocs_gen_files.open(path, "w") as file:
        file.write("\n".join(lines) + "\n")


def escape(text: Any) -> str:
    """Return a text for a cell of a Markdown table."""
    return str(text).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def command_help(text: str) -> str:
    """Return the help of a command as Markdown. Examples, and paragraphs that click does not wrap, are code."""
    parts = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            lines = paragraph.removeprefix("\b").strip()
            parts.append(f"```text\n{lines}\n```")
        elif paragraph.startswith("Example: "):
            command = " ".join(paragraph.removeprefix("Example: ").split()).strip("`")
            parts.append(f"Example:\n\n```text\n{command}\n```")
        else:
            parts.append(paragraph)
    return "\n\n".join(parts)


def command_docs(name: str, command: click.Command) -> Iterable[str]:
    """Return a page of a command and its subcommands, with the options as `--help` prints them."""
    pending = [command]
    while pending:
        each = pending.pop()
        if each.help:
            each.help = command_help(each.help)
        if isinstance(each, click.Group):
            context = click.Context(each)
            pending += [found for sub in each.list_commands(context) if (found := each.get_command(context, sub))]
    return make_command_docs(name, command, style="plain")


def command_pages() -> None:
    context, index = click.Context(commands, info_name="chessreg"), ["# Commands", "", "| Command | |", "| --- | --- |"]
    for name in commands.list_commands(context):
        command = commands.get_command(context, name)
        if command is None or command.hidden:
            continue
        short = command.get_short_help_str(120)
        if name == "run":  # its subcommands are the kinds, which have separate pages
            index.append(f"| [chessreg run KIND](kinds.md) | {escape(short)} |")
            continue
        page = f"reference/commands/{name}.md"
        write(page, command_docs(f"chessreg {name}", command))
        index.append(f"| [chessreg {name}](commands/{name}.md) | {escape(short)} |")
    write("reference/commands.md", index)


def kind_pages() -> None:
    context = click.Context(commands, info_name="chessreg")
    run = commands.get_command(context, "run")
    assert isinstance(run, click.Group)
    inner = click.Context(run, info_name="run", parent=context)
    index = ["# Experiment kinds", "", "| Kind | |", "| --- | --- |"]
    for name in run.list_commands(inner):
        command = run.get_command(inner, name)
        if command is not None:
            short = command.get_short_help_str(120)
            write(f"reference/kinds/{name}.md", command_docs(f"chessreg run {name}", command))
            index.append(f"| [{name}](kinds/{name}.md) | {escape(short)} |")
    write("reference/kinds.md", index)


def column_rows(columns: list[dict[str, Any]]) -> Iterator[str]:
    yield from ("| Column | Unit | |", "| --- | --- | --- |")
    for column in columns:
        yield f"| `{column['name']}` | {escape(column.get('unit') or '')} | {escape(column['text'])} |"


def query_pages(reg: chessreg.api.Registry) -> None:
    index = ["# Queries", "", "Sample tables come from a small registry that the tests use; its numbers mean nothing."]
    by_topic = defaultdict(list)
    for entry in reg.command("query", "--list"):
        by_topic[entry["topic"]].append(entry)
    for topic, entries in by_topic.items():
        index += ["", f"## {topic.capitalize()}", "", "| Query | Question |", "| --- | --- |"]
        for entry in entries:
            title, file = entry["title"], entry["title"].replace(" ", "-") + ".md"
            index.append(f"| [{title}](queries/{file}) | {escape(entry['question'])} |")
            page = [f"# {title}", "", entry["question"], "", f'    chessreg query "{title}"', ""]
            page += [f"- **Paper:** {entry['paper']}", f"- **Rows come from:** `{entry['made_by']}`"]
            if entry["aliases"]:
                page.append(f"- **Also found as:** {', '.join(entry['aliases'])}")
            page += ["", "## Columns", "", *column_rows(reg.command("query", title, "--columns"))]
            if entry["has_runs"]:
                page += ["", "## Sample", "", "```text", repr(reg.query(title)), "```"]
            write(f"reference/queries/{file}", page)
    write("reference/queries.md", index)


def plot_page(reg: chessreg.api.Registry) -> None:
    page = ["# Plots", "", '`chessreg plot "TITLE" --output figure.svg`', ""]
    page += ["| Plot | Form | x | y | Of the query |", "| --- | --- | --- | --- | --- |"]
    for plot in reg.command("plot", "--list"):
        page.append(f"| {plot['title']} | {plot['form']} | {plot['x']} | {plot['y']} | {plot['query']} |")
    write("reference/plots.md", page)


def view_page(reg: chessreg.api.Registry) -> None:
    page = ["# SQL tables and views", "", '`chessreg query --sql "SELECT …"` reads these in DuckDB\'s dialect.']
    for row in reg.sql("SHOW TABLES").rows:
        name = row["name"]
        columns = reg.sql(f'DESCRIBE "{name}"').rows
        page += ["", f"## {name}", "", ", ".join(f"`{each['column_name']}` {each['column_type']}" for each in columns)]
    write("reference/views.md", page)


def python_pages() -> None:
    page = ["# Python"]
    for module, names in MEMBERS.items():
        page += [line for name in names for line in ("", f"::: {module}.{name}")]
    write("reference/python.md", page)
    names = sorted(set(chessreg.kinds.__all__) - {"NotFoundError"})
    lines = [line for name in names for line in ("", f"::: chessreg.kinds.{name}")]
    write("reference/kinds-python.md", ["# Python for experiment kinds", "", "`from chessreg.kinds import …`", *lines])


def project_pages() -> None:
    """Copy the root documents. Their links to docs/ and to each other lead to the site's pages."""
    for path in ROOT.glob("*.md"):
        if path.name == "README.md":
            continue
        text = re.sub(r"\]\(docs/", "](../", path.read_text(encoding="utf-8"))
        text = re.sub(r"\]\(([A-Z]+)\.md", lambda match: f"]({match[1].lower()}.md", text)
        text = re.sub(r"\[([^\]]+)\]\((?!https?:|#|[a-z]+\.md|\.\./)[^)]*\)", r"\1", text)
        write(f"project/{path.stem.lower()}.md", [text])
    for picture in (ROOT / "tui/pictures").glob("*.svg"):
        with mkdocs_gen_files.open(f"pictures/{picture.name}", "wb") as file:
            file.write(picture.read_bytes())


command_pages()
kind_pages()
python_pages()
project_pages()
with tempfile.TemporaryDirectory() as folder:
    with zipfile.ZipFile(DEMO) as archive:
        archive.extractall(folder)
    with chessreg.open(next(Path(folder).rglob("registry.db"))) as reg:
        query_pages(reg)
        plot_page(reg)
        view_page(reg)
