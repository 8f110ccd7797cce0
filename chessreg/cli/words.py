"""Words about things: name, tag, note, archive, invalidate. The same commands for every noun that is listed."""

from __future__ import annotations

import click

from chessreg.cli.base import Home, pass_home

# word → the command that undoes it, and the help of both
SWITCHES = {
    "star": ("unstar", "Star a {noun}: lists can show these first.", "Take the star back."),
    "pin": ("unpin", "Pin a {noun}: it is the baseline that others are compared with.", "Take the pin back."),
    "archive": (
        "restore",
        "Leave a {noun} out of lists and queries; nothing is deleted.",
        "Take it back out of the archive.",
    ),
}


def say(home: Home, noun: str, reference: str, word: str, value: str, withdrawn: bool = False) -> None:
    """Say it, or take it back, and tell so on stderr."""
    from chessreg.registry import names

    database = home.session().database
    with database.write() as session:
        target = names.resolve(session, noun, reference)
        names.say(session, noun, target, word, value, withdrawn=withdrawn)
    said = f"{word} {value!r}" if value else word
    click.echo(f"{noun} {target.hex[-6:]}: {'no longer ' if withdrawn else ''}{said}", err=True)


def take_back(home: Home, noun: str, reference: str, word: str) -> None:
    """Take back everything that this word says of a thing. Raises NotFoundError when it says nothing."""
    from chessreg.errors import NotFoundError
    from chessreg.registry import names

    with home.session().database.write() as session:
        target = names.resolve(session, noun, reference)
        if not names.take_back(session, noun, target, word):
            raise NotFoundError(f"{noun} {reference} is not said to be {word}", f"chessreg {noun} show {reference}")
    click.echo(f"{noun} {target.hex[-6:]}: no longer {word}", err=True)


def add_words(group: click.Group, noun: str) -> None:
    """Give a noun's group the commands name, tag, note, star, pin, archive and invalidate, and those that undo them."""
    what = noun.upper()

    @group.command("name", help=f"Name a {noun}; a new name takes the old one's place.")
    @click.argument("reference", metavar=what)
    @click.argument("name")
    @pass_home
    def name(home: Home, reference: str, name: str) -> None:
        say(home, noun, reference, "name", name)

    @group.command("tag", help=f"Tag a {noun}. Example: chessreg {group.name} tag 3f2a09 paper")
    @click.argument("reference", metavar=what)
    @click.argument("tag")
    @pass_home
    def tag(home: Home, reference: str, tag: str) -> None:
        say(home, noun, reference, "tag", tag)

    @group.command("untag", help="Take a tag back.")
    @click.argument("reference", metavar=what)
    @click.argument("tag")
    @pass_home
    def untag(home: Home, reference: str, tag: str) -> None:
        say(home, noun, reference, "tag", tag, withdrawn=True)

    @group.command("note", help=f"Note something about a {noun}.")
    @click.argument("reference", metavar=what)
    @click.argument("text")
    @pass_home
    def note(home: Home, reference: str, text: str) -> None:
        say(home, noun, reference, "note", text)

    for word, (undo, help, undone) in SWITCHES.items():
        group.add_command(switch(noun, word, word, help.format(noun=noun)))
        group.add_command(switch(noun, undo, word, undone, back=True))
    group.add_command(invalidate(noun))
    group.add_command(validate(noun))


def switch(noun: str, name: str, word: str, help: str, back: bool = False) -> click.Command:
    """A command that says a word without a value of a thing, or takes it back."""

    @click.command(name, help=help)
    @click.argument("reference", metavar=noun.upper())
    @pass_home
    def command(home: Home, reference: str) -> None:
        if back:
            take_back(home, noun, reference, word)
        else:
            say(home, noun, reference, word, "")

    return command


def invalidate(noun: str) -> click.Command:
    """`invalidate THING --why TEXT`, for one noun."""

    @click.command("invalidate")
    @click.argument("reference", metavar=noun.upper())
    @click.option("--why", required=True, help="The reason; it is shown wherever this is.")
    @pass_home
    def command(home: Home, reference: str, why: str) -> None:
        say(home, noun, reference, "invalid", why)
        tell_stale(home)

    command.help = f"Say that a {noun} is wrong: no query counts it, and what was made from it is marked stale."
    return command


def validate(noun: str) -> click.Command:
    """`validate THING`, for one noun."""

    @click.command("validate", help=f"Say that a {noun} is not wrong after all.")
    @click.argument("reference", metavar=noun.upper())
    @pass_home
    def command(home: Home, reference: str) -> None:
        take_back(home, noun, reference, "invalid")
        tell_stale(home)

    return command


def tell_stale(home: Home) -> None:
    """How many runs are stale now."""
    from chessreg.registry.lineage import stale

    with home.session().database.read() as session:
        count = len(stale(session))
    if count:
        click.echo(f"{count} run{'s are' if count > 1 else ' is'} stale: made from something invalid", err=True)


invalidate_run = invalidate("run")
validate_run = validate("run")
