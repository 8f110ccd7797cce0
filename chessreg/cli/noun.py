"""`chessreg NOUN list`, `show` and `verify`, from a noun's declaration in `chessreg.entities`; and the annotations of
its rows: names, tags, notes, pins, archive, invalid."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import click

from chessreg.cli.base import (
    Group,
    Home,
    NoteText,
    add_json_option,
    add_last_option,
    add_sort_option,
    open_with_waiting_results,
    pass_home,
    print_output,
    print_table,
)
from chessreg.entities import load_entity
from chessreg.entities.base import Entity
from chessreg.entities.display import Option
from chessreg.rows import Percent, sort_listed_rows
from chessreg.session import Session

TYPES: dict[type, Any] = {str: str, int: click.IntRange(0), bool: None}


def group_of(noun: str) -> Group:
    """Return the group of a noun's common commands; specific commands are added to it."""
    noun_entity = load_entity(noun)
    group = Group(noun_entity.command or noun, help=noun_entity.__doc__)
    group.add_command(list_command(noun_entity))
    group.add_command(show_command(noun_entity))
    if noun_entity.verify is not None:
        group.add_command(verify_command(noun_entity))
    if not noun_entity.is_made_by_runs:  # entities that a run made are named after the run
        add_annotation_commands(group, noun)
    return group


def get_headings(noun: Entity) -> dict[str, str]:
    """Return field → heading of the columns of a noun's list."""
    return {
        column.field: f"{column.heading} %" if column.unit == "share" else column.heading for column in noun.columns
    }


def print_rows(home: Home, noun: Entity, rows: list[dict[str, Any]], *, name_empty: bool = True) -> None:
    """Print rows of a noun as `list` does. Shares are percentages, with % in the heading. With `name_empty`, a line
    names the columns without a value."""
    if home.json:
        print_output(home, rows)
        return
    texts: dict[str, Any] = {column.field: column.text for column in noun.columns if column.text is not None}
    texts |= {column.field: to_percent for column in noun.columns if column.unit == "share"}
    rows = [{**row, **{field: text(row[field]) for field, text in texts.items()}} for row in rows]
    print_table(rows, get_headings(noun), name_empty=name_empty)


def to_percent(share: float | None) -> Percent | None:
    """Return a fraction of 1 in percent."""
    return None if share is None else Percent(100 * share)


def list_command(noun: Entity) -> click.Command:
    """Return the `list` command of a noun."""
    help = add_example(noun.list_help or f"List the {noun.plural}.", f"chessreg {noun.command or noun.noun} list")

    @click.command("list", help=help)
    @add_last_option()
    @add_sort_option
    @add_json_option
    @pass_home
    def list_rows(home: Home, last: int, sort: str | None, run: str | None = None, everything: bool = True) -> None:
        with open_home(home).database.read() as sql:
            rows = noun.rows(sql, run)
        rows = [row for row in rows if everything or not row["archived"]][-last:]
        print_rows(home, noun, sort_listed_rows(rows, sort, get_headings(noun)))

    if noun.is_made_by_runs:
        list_rows.params.insert(
            0, click.Option(["--run"], metavar="RUN", help="List only the results of this run. Left out: of all runs.")
        )
    else:
        list_rows.params.insert(
            0, click.Option(["--all", "everything"], is_flag=True, help="Include archived entries.")
        )
    return list_rows


def show_command(noun: Entity) -> click.Command:
    """Return the `show` command of a noun, with the options that the noun declares."""
    help = add_example(
        noun.show_help or f"Show one {noun.noun}.", f"chessreg {noun.command or noun.noun} show {noun.example}"
    )

    @click.command("show", help=help)
    @click.argument("reference", metavar="RUN" if noun.is_made_by_runs else noun.noun.upper())
    @add_json_option
    @pass_home
    def show_row(home: Home, reference: str, **options: Any) -> None:
        output = noun.show(open_home(home), reference, **options)
        for remark in output.remarks:
            click.echo(remark, err=True)
        if home.json or isinstance(output.data, list):
            print_output(home, output.data)
            return
        print_output(home, {**output.data, **output.read_as}, output.fields)
        for part in output.parts:
            if part.rows:
                click.echo(f"\n{part.name}")
                headings = {column.field: column.heading for column in part.columns}
                print_table([dict(row) for row in part.rows], headings, name_empty=False)
        for line in output.lines:
            click.echo(line)

    show_row.params[1:1] = make_click_options(noun.show_options)
    return show_row


def verify_command(noun: Entity) -> click.Command:
    """Return the `verify` command of a noun. It exits with status 1 if there are problems."""
    example = noun.example.partition(" ")[0]

    @click.command("verify", help=add_example(noun.verify_help, f"chessreg {noun.noun} verify {example}"))
    @click.argument("reference", metavar="RUN" if noun.is_made_by_runs else noun.noun.upper())
    @add_json_option
    @pass_home
    @click.pass_context
    def verify_row(ctx: click.Context, home: Home, reference: str, **options: Any) -> None:
        assert noun.verify is not None
        verification = noun.verify(home.session(), reference, **options)
        print_output(home, verification.counts, verification.fields)
        for problem in verification.problems:
            click.echo(f"error: {problem}", err=True)
        if verification.problems:
            ctx.exit(1)
        click.echo(verification.outcome, err=True)

    verify_row.params[1:1] = make_click_options(noun.verify_options)
    return verify_row


def open_home(home: Home) -> Session:
    """Return the open session after ingesting waiting fragments."""
    open_with_waiting_results(home)
    return home.session()


def make_click_options(options: Iterable[Option]) -> list[click.Parameter]:
    """Return the click options of a noun's declared options."""
    return [
        click.Option([f"--{option.name.replace('_', '-')}"], type=TYPES[option.type], help=option.help,
                     is_flag=option.type is bool, metavar=option.metavar, default=option.default,
                     show_default=option.default is not None)
        for option in options
    ]  # fmt: skip


def add_example(text: str, example: str) -> str:
    return f"{' '.join(text.split())}\n\n\b\nExample: {example}"


# word → the command that undoes it, and the help of both
SWITCHES = {
    "star": ("unstar", "Star a {noun}, so that lists can show it first.", "Remove the star."),
    "pin": ("unpin", "Pin a {noun}: it is the baseline that others are compared with.", "Remove the pin."),
    "archive": (
        "restore",
        "Leave a {noun} out of lists and queries; nothing is deleted.",
        "Return an archived entry to lists and queries.",
    ),
}


def add_note_option(function: Any) -> Any:
    """Add `--note` to a command that adds or imports something; `save_note` keeps its text."""
    help = "Note to store with it, for example how it was made. `show` and `lineage` print it. Left out: no note."
    return click.option("--note", type=NoteText(), help=help)(function)


def save_note(home: Home, noun: str, id: UUID, note: str | None) -> None:
    """Add the text of `--note` to an entity, if there is one. Does nothing if the entity has that note already."""
    from chessreg.registry import names

    if note is not None:
        with home.session().database.write() as session:
            names.add_annotation(session, noun, id, "note", note)


def change_annotation(home: Home, noun: str, reference: str, word: str, value: str, withdrawn: bool = False) -> None:
    """Add the annotation `word` to an entity, or withdraw it, and print the change on stderr. `value` is empty for a
    switch."""
    from chessreg.registry import names

    database = home.session().database
    with database.write() as session:
        target = names.resolve_id(session, noun, reference)
        names.add_annotation(session, noun, target, word, value, withdrawn=withdrawn)
    annotation = f"{word} {value!r}" if value else word
    click.echo(f"{noun} {target.hex[-6:]}: {'no longer ' if withdrawn else ''}{annotation}", err=True)


def remove_annotations(home: Home, noun: str, reference: str, word: str) -> None:
    """Remove all annotations with `word` (star, pin, invalid, …) of the entity that `noun` and `reference` identify.

    Raises NotFoundError if it has none.
    """
    from chessreg.errors import NotFoundError
    from chessreg.registry import names

    with home.session().database.write() as session:
        target = names.resolve_id(session, noun, reference)
        if not names.withdraw_annotations(session, noun, target, word):
            raise NotFoundError(
                f"{noun} {reference} is not marked as {word}",
                f"chessreg {load_entity(noun).command or noun} show {reference}",
            )
    click.echo(f"{noun} {target.hex[-6:]}: no longer {word}", err=True)


def add_annotation_commands(group: click.Group, noun: str) -> None:
    """Add the commands name, tag, note, star, pin, archive, invalidate and their opposites to a noun's group."""
    tag_help = f"Tag a {noun}. Example: chessreg {group.name} tag 3f2a09 paper"
    group.add_command(
        make_value_command(noun, "name", "name", "name", f"Name a {noun}; a new name replaces the old one.")
    )
    group.add_command(make_value_command(noun, "tag", "tag", "tag", tag_help))
    group.add_command(make_value_command(noun, "untag", "tag", "tag", "Remove a tag.", back=True))
    group.add_command(make_value_command(noun, "note", "note", "text", f"Add a note to a {noun}."))
    for word, (undo, help, notice) in SWITCHES.items():
        group.add_command(make_switch_command(noun, word, word, help.format(noun=noun)))
        group.add_command(make_switch_command(noun, undo, word, notice, back=True))
    group.add_command(make_invalidate_command(noun))
    group.add_command(make_unmark_command(noun))


def make_value_command(noun: str, name: str, word: str, value: str, help: str, back: bool = False) -> click.Command:
    """Return the command `name` of a noun: it adds the annotation `word` with a value, or removes it if `back`.

    `value` is the name of the command's argument.
    """

    @click.command(name, help=help)
    @click.argument("reference", metavar=noun.upper())
    @click.argument(value)
    @pass_home
    def change_value(home: Home, reference: str, **withdrawn: str) -> None:
        change_annotation(home, noun, reference, word, withdrawn[value], withdrawn=back)

    return change_value


def make_switch_command(noun: str, name: str, word: str, help: str, back: bool = False) -> click.Command:
    """Return the command `name` of a noun: it adds the annotation `word` without a value, or removes it if `back`."""

    @click.command(name, help=help)
    @click.argument("reference", metavar=noun.upper())
    @pass_home
    def switch_annotation(home: Home, reference: str) -> None:
        if back:
            remove_annotations(home, noun, reference, word)
        else:
            change_annotation(home, noun, reference, word, "")

    return switch_annotation


def make_invalidate_command(noun: str) -> click.Command:
    """Return the command `invalidate THING --why TEXT` of a noun."""

    @click.command("invalidate")
    @click.argument("reference", metavar=noun.upper())
    @click.option("--why", required=True, help="Reason, shown in every list.")
    @pass_home
    def invalidate_row(home: Home, reference: str, why: str) -> None:
        change_annotation(home, noun, reference, "invalid", why)
        print_stale_count(home)

    invalidate_row.help = (
        f"Mark a {noun} as wrong: queries leave it out, and everything derived from it is marked stale."
    )
    return invalidate_row


def make_unmark_command(noun: str) -> click.Command:
    """Return the command `unmark THING` of a noun."""

    @click.command("unmark", help=f"Clear the invalidation of a {noun}.")
    @click.argument("reference", metavar=noun.upper())
    @pass_home
    def unmark_row(home: Home, reference: str) -> None:
        remove_annotations(home, noun, reference, "invalid")
        print_stale_count(home)

    return unmark_row


def print_stale_count(home: Home) -> None:
    """Print the number of stale runs."""
    from chessreg.registry.lineage import find_stale_runs

    with home.session().database.read() as session:
        count = len(find_stale_runs(session))
    if count:
        click.echo(f"{count} run{'s are' if count > 1 else ' is'} stale: made from something invalid", err=True)


invalidate_run = make_invalidate_command("run")
unmark_run = make_unmark_command("run")
