"""The conditions of a run of edits: every edit, each followed by its controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class EditSetting:
    """One edit: its number in the run, its layers (0-based, ascending) and the value of the scale rule."""

    number: int
    layers: tuple[int, ...]
    value: float


@dataclass(frozen=True)
class EditCondition:
    """One way to edit a state: a setting with the probe's own direction (`edit`), or with another direction in its
    place."""

    name: str
    setting: EditSetting
    source: str  # edit, other (probes), patch, or a control
    draw: int = 0


def list_conditions(
    settings: Sequence[EditSetting], controls: Mapping[str, tuple[str, int]], draws: Mapping[str, int]
) -> list[EditCondition]:
    """Return the conditions of every setting: the edit, then its other directions, then the draws of its controls.

    `controls` maps the name of a condition to (source, number of the direction), and `draws` a control to its number of
    draws. The names of edits end in the number of the setting if there are several settings.
    """
    conditions = []
    for setting in settings:
        suffix = "" if len(settings) == 1 else f"-{setting.number}"
        sources = {"edit": ("edit", 0), **controls}
        conditions += [
            EditCondition(name + suffix, setting, source, number) for name, (source, number) in sources.items()
        ]
        for source, count in draws.items():
            first_number = setting.number * count
            conditions += [
                EditCondition(f"{source}-{first_number + draw}", setting, source, draw) for draw in range(count)
            ]
    return conditions
