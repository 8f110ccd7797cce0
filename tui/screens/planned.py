"""What a form says of itself: what a field means, what launching would do, and the command that does the same."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rich.text import Text

from tui import gauge, show
from tui.data.form import Checked, Field, Form

if TYPE_CHECKING:
    from tui.data.launching import Outlook
    from tui.data.pages import Row

STANDING = {"complete": "complete already: nothing to do", "already_queued": "a job stands for it already"}


def about(field: Field, error: str) -> Text:
    """A field: what is wrong with it, or what it means and may be."""
    text = Text(field.path, style="bold")
    text.append(f"  {what_form(field)}", style="dim")
    if error:
        text.append(f"\n! {error}", style="bold")
    else:
        text.append(f"\n{field.text}")
        if not field.needed:
            text.append(f" (default: {field.shown_default or 'none'})", style="dim")
    return text


def what_form(field: Field) -> str:
    """What one may type."""
    if field.form == "choice":
        return f"one of {', '.join(field.choices)}"
    if field.form == "reference":
        return f"a {field.noun.removeprefix('run:').replace('-', ' ')}"
    if field.form == "references":
        return f"{field.noun.removeprefix('run:').replace('-', ' ')}s, with commas between"
    if field.form == "list":
        return "numbers such as 0,2,5-7" if field.type is int else "values with commas between"
    return field.form


def plan_text(form: Form, checked: Checked, outlook: Outlook | None, wide: bool) -> Text:
    """The plan in a few lines, or why there is none yet; then the command."""
    text = Text()
    if not checked.right:
        needed = [form.by_key[key].path for key in checked.errors if checked.errors[key] == "it is needed"]
        wrong = [form.by_key[key].path for key in checked.errors if checked.errors[key] != "it is needed"]
        told = []
        if needed:
            told.append(f"needed: {', '.join(needed)}")
        if wrong:
            told.append(f"wrong: {', '.join(wrong)}")
        text.append("not ready  ", style="bold")
        text.append("; ".join([*told, *checked.general]))
    elif outlook is None:
        text.append("planning…", style="dim")
    elif outlook.errors:
        text.append("not ready  ", style="bold")
        text.append(f"not found: {', '.join(form.by_key[key].path for key in outlook.errors)}")
    elif outlook.plan is None:
        text.append("not ready  ", style="bold")
        text.append(outlook.trouble + (f" ({outlook.hint})" if outlook.hint else ""))
    else:
        text.append_text(plan_lines(outlook.plan, checked, wide))
    text.append("\n\n" if wide else "\n")
    text.append("$ ", style="dim")
    text.append(broken(form) if wide else form.command())
    return text


def plan_lines(plan: Row, checked: Checked, wide: bool) -> Text:
    """Units, rows, bytes and time: each on a line of its own where there is room."""
    units = "not known before its inputs are made"
    if plan["units"] is not None:
        units = f"{plan['units']:,}" + (
            f", {plan['missing']:,} missing" if plan["missing"] not in (None, plan["units"]) else ""
        )
    rows = ", ".join(f"{count:,} {family}" for family, count in (plan["rows"] or {}).items()) or "not estimated"
    size = gauge.size(plan["bytes"]) if plan["bytes"] is not None else "not estimated"
    like = f" (by {show.counted(plan['like'], 'earlier run')} like it)" if plan["like"] else ""
    time = f"about {show.duration(plan['seconds'])}{like}" if plan["seconds"] is not None else "not known: never run"
    if plan["units"] is None or plan["status"] == "complete":
        time = ""
    asked = checked.launch
    where = " · ".join([asked.on, show.counted(asked.shards, "shard"), plan["determinism"]])
    facts = {
        "run": show.short(plan["run_id"]),
        "units": units,
        "rows": rows,
        "bytes": size,
        "time": time,
        "on": where,
        "waits for": ", ".join(plan["waits_for"]),
    }
    text = Text()
    text.append(STANDING.get(plan["status"], "ready"), style="bold")
    for name, told in facts.items():
        if told:
            text.append(f"\n{name:<10}" if wide else f"  {name} ", style="dim")
            text.append(told)
    for remark in plan["remarks"]:
        text.append(f"\nnote: {remark}", style="dim")
    return text


def broken(form: Form) -> str:
    """The command with an option a line, as one would paste it."""
    words = form.words()
    lines, line = [], [*words[:3]]
    for word in words[3:]:
        if word.startswith("--"):
            lines.append(line)
            line = []
        line.append(word)
    return " \\\n    ".join(shlex.join(line) for line in [*lines, line])
