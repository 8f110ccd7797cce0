"""The nouns of a registry: datasets, checkpoints, caches, probes, vectors, SAEs, and the nouns of installed packages.

A noun is a database table with a `Noun`, and one subclass of `entities.base.Entity`. The subclass is in a module of
this package or behind an entry point of the group `chessreg.entities`. Listing, the TUI, naming, lineage, merge and gc
find it there.
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

GROUP = __name__  # entry point group
ENTITY_CLASS = re.compile(r'^class \w+\(Entity\):\n    """([^"\n]+)', re.MULTILINE)


@functools.cache
def list_entity_modules() -> dict[str, str]:
    """Return module name → one-line description of the modules here that declare a noun, without importing any."""
    module_of = {}
    for info in pkgutil.iter_modules(__path__):
        for folder in __path__:
            path = Path(folder) / f"{info.name}.py"
            match = ENTITY_CLASS.search(path.read_text(encoding="utf-8")) if path.is_file() else None
            if match:
                module_of[info.name] = match[1]
    return module_of


def list_nouns() -> dict[str, str]:
    """Return noun → one-line description of every noun, without importing any. An entry point is named as its noun."""
    external_nouns = {
        point.name: f"From {point.dist.name if point.dist else '?'}." for point in plugins.list_entry_points(GROUP)
    }
    return {**external_nouns, **list_entity_modules()}


def load_entities() -> dict[str, Entity]:
    """Return noun → entity, in display order. Raises ChessregError if two entities share a noun."""
    classes = [_load_module_entity(name) for name in list_entity_modules()] + [
        _load_plugin_entity(point) for point in plugins.list_entry_points(GROUP)
    ]
    entities: dict[str, Entity] = {}
    for cls in classes:
        entity: Entity = cls()
        if entity.noun in entities:
            modules = f"{type(entities[entity.noun]).__module__} and {cls.__module__}"
            raise ChessregError(f"two entities have the noun {entity.noun}: {modules}", "uninstall one of the packages")
        entities[entity.noun] = entity
    return dict(sorted(entities.items(), key=lambda item: (item[1].place, item[0])))


def load_entity(noun: str) -> Entity:
    """Return the entity of `noun`. Raises NotFoundError if the noun is unknown."""
    if noun in list_entity_modules():
        return _load_module_entity(noun)()
    entities = load_entities()
    if noun not in entities:
        raise NotFoundError(f"unknown noun {noun!r}", f"available: {', '.join(entities)}")
    return entities[noun]


def _load_plugin_entity(point: EntryPoint) -> type[Entity]:
    """Return the subclass of Entity behind an entry point. Raises ChessregError if it is not one."""
    from chessreg.entities.base import Entity

    entity_class: type[Entity] = plugins.load_entry_point(point, "noun")
    if not (inspect.isclass(entity_class) and issubclass(entity_class, Entity)):
        raise ChessregError(
            f"{point.value} of {plugins.describe_package(point)} is not a subclass of {Entity.__module__}.Entity"
        )
    return entity_class


def _load_module_entity(module: str) -> type[Entity]:
    """Return the subclass of Entity in a module of this package. Raises ChessregError unless there is exactly one."""
    from chessreg.entities.base import Entity

    entity_module = plugins.load_custom_module(f"{__name__}.{module}")
    entity_classes = [
        value
        for value in vars(entity_module).values()
        if inspect.isclass(value) and issubclass(value, Entity) and value.__module__ == entity_module.__name__
    ]
    if len(entity_classes) != 1:
        raise ChessregError(
            f"{entity_module.__file__} declares {len(entity_classes)} subclasses of Entity", "declare exactly one"
        )
    return entity_classes[0]


def check_entity_module(name: str) -> None:
    """Raise ChessregError, naming file and line, if the module `name` of this package is broken."""
    if name.isidentifier() and importlib.util.find_spec(f"{__name__}.{name}"):
        plugins.load_custom_module(f"{__name__}.{name}")
