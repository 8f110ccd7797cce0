"""The words of the scope bar: what a query is narrowed to, as one types it and as the command line says it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from chessreg.errors import BadInputError

if TYPE_CHECKING:
    from chessreg.queries.scope import Scope
    from chessreg.session import Session

SEVERAL = ("checkpoint", "run", "tag", "machine")  # each may be given several times
FIELDS = (*SEVERAL, "since", "partial", "where")
GRAMMAR = "checkpoint:NAME  run:NAME  tag:TAG  machine:HOST  since:7d  partial  where:CONDITION"


def options(words: str) -> dict[str, Any]:
    """The options of Scope that these words say; `where:` takes all that follows it.

    >>> options("tag:best since:7d where: layer > 3 and color = 'white'")
    {'tag': ['best'], 'since': '7d', 'where': "layer > 3 and color = 'white'"}

    Raises BadInputError for a word that no scope has, and for a field without a value.
    """
    said, where, condition = words.partition("where:")
    found: dict[str, Any] = {}
    for word in said.split():
        name, colon, value = word.partition(":")
        if word == "partial":
            found["partial"] = True
        elif name not in FIELDS or not colon:
            raise BadInputError(f"a scope has no {word!r}", f"it is {' '.join(GRAMMAR.split())}")
        elif not value:
            raise BadInputError(f"{word} what?", f"it is {' '.join(GRAMMAR.split())}")
        elif name in SEVERAL:
            found.setdefault(name, []).append(value)
        else:
            found[name] = value
    if where and not condition.strip():
        raise BadInputError("where: what?", "for example where: color = 'white'")
    return found | ({"where": condition.strip()} if where else {})


def scope_of(words: str, partial: bool = False) -> Scope:
    """The scope itself. Raises BadInputError."""
    from chessreg.queries.scope import Scope

    return Scope.of(options(words) | ({"partial": True} if partial else {}))


def as_options(words: str) -> str:
    """The same for the command line, each with a blank before it; empty for no words.

    >>> as_options("tag:best where: layer > 3")
    " --tag best --where 'layer > 3'"
    """
    said = []
    for name, value in options(words).items():
        for each in value if isinstance(value, list) else [value]:
            said.append(f"--{name}" if each is True else f"--{name} {shlex.quote(each)}")
    return "".join(f" {option}" for option in said)


def offered(session: Session) -> list[str]:
    """Every whole word that a scope of this registry may hold, for completion."""
    from sqlalchemy import select

    from chessreg.registry.names import NOW
    from chessreg.registry.tables import Machine

    with session.database.read() as sql:
        named = sql.execute(
            select(NOW.c.noun, NOW.c.value)
            .where(NOW.c.word == "name", NOW.c.noun.in_(("checkpoint", "run")))
            .distinct()
        )
        words = [f"{noun}:{value}" for noun, value in named]
        tags = select(NOW.c.value).where(NOW.c.word == "tag", NOW.c.noun.in_(("checkpoint", "run"))).distinct()
        words += [f"tag:{tag}" for tag in sql.scalars(tags)]
        words += [f"machine:{host}" for host in sql.scalars(select(Machine.host).distinct())]
    return [*sorted(words), "partial", "since:7d", "where:"]


def completed(words: str, known: list[str]) -> str | None:
    """The words with the last one completed; None where nothing begins so, or a condition is being written.

    >>> completed("partial check", ["checkpoint:a", "checkpoint:b"])
    'partial checkpoint:a'
    """
    before, _, last = words.rpartition(" ")
    if not last or "where:" in words:
        return None
    found = next((word for word in known if word.startswith(last) and word != last), None)
    return f"{before} {found}".lstrip() if found else None
