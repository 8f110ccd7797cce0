"""The nouns of a registry: datasets, checkpoints, caches, probes, vectors, SAEs, and those that a package brings.

A noun is a table with a `Noun` and one subclass of `entities.base.Entity` in one module of this package, or behind an
entry point of the group `chessreg.entities`. Lists, the data room, names, lineage, merge and gc know it from there.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import pkgutil
import re
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

from chessreg import plugins
from chessreg.errors import ChessregError, NotFoundError

if TYPE_CHECKING:
    from chessreg.entities.base import Entity

GROUP = __name__  # of entry points
DECLARES = re.compile(r'^class \w+\(Entity\):\n    """([^"\n]+)', re.MULTILINE)


@functools.cache
def modules() -> dict[str, str]:
    """The modules of this package that declare a noun, each named as it, and what they say it is. Imports none."""
    module_of = {}
    for info in pkgutil.iter_modules(__path__):
        for folder in __path__:
            path = Path(folder) / f"{info.name}.py"
            declared = DECLARES.search(path.read_text(encoding="utf-8")) if path.is_file() else None
            if declared:
                module_of[info.name] = declared[1]
    return module_of


def nouns() -> dict[str, str]:
    """Every noun with a line on it, without importing any: an entry point is called as its noun."""
    brought = {
        point.name: f"From {point.dist.name if point.dist else '?'}." for point in plugins.list_entry_points(GROUP)
    }
    return {**brought, **modules()}


def entities() -> dict[str, Entity]:
    """Every noun that is declared, in the order in which a user meets them. Raises ChessregError when two share one."""
    classes = [_declared_in(name) for name in modules()] + [
        _brought(point) for point in plugins.list_entry_points(GROUP)
    ]
    declared: dict[str, Entity] = {}
    for cls in classes:
        made: Entity = cls()
        if made.noun in declared:
            both = f"{type(declared[made.noun]).__module__} and {cls.__module__}"
            raise ChessregError(f"two entities are called {made.noun}: {both}", "remove the package that brings one")
        declared[made.noun] = made
    return dict(sorted(declared.items(), key=lambda item: (item[1].place, item[0])))


def entity(noun: str) -> Entity:
    """The entity of this noun. Raises NotFoundError when there is none."""
    if noun in modules():
        return _declared_in(noun)()
    known = entities()
    if noun not in known:
        raise NotFoundError(f"there is no noun {noun!r}", f"nouns are {', '.join(known)}")
    return known[noun]


def _brought(point: EntryPoint) -> type[Entity]:
    """The subclass of Entity behind an entry point."""
    from chessreg.entities.base import Entity

    declared: type[Entity] = plugins.load_entry_point(point, "noun")
    if not (inspect.isclass(declared) and issubclass(declared, Entity)):
        raise ChessregError(f"{point.value} of {plugins.package(point)} is no subclass of {Entity.__module__}.Entity")
    return declared


def _declared_in(module: str) -> type[Entity]:
    """The subclass of Entity in a module of this package."""
    from chessreg.entities.base import Entity

    imported = plugins.load_custom_module(f"{__name__}.{module}")
    declared = [
        value
        for value in vars(imported).values()
        if inspect.isclass(value) and issubclass(value, Entity) and value.__module__ == imported.__name__
    ]
    if len(declared) != 1:
        raise ChessregError(f"{imported.__file__} declares {len(declared)} subclasses of Entity", "one is a noun")
    return declared[0]


def check_file(name: str) -> None:
    """Raise ChessregError, which names file and line, for a broken module of this name here."""
    if name.isidentifier() and importlib.util.find_spec(f"{__name__}.{name}"):
        plugins.load_custom_module(f"{__name__}.{name}")
