"""`chessreg machines`: where things ran."""

from __future__ import annotations

from typing import Any

import click

from chessreg.cli.base import Home, emit, json_option, pass_home
from chessreg.cli.fresh import fresh


@click.command()
@json_option
@pass_home
def machines(home: Home) -> None:
    """List the machines that ran something: host, processor, GPUs, driver, versions, and when they were last seen.

    A host that got another GPU or PyTorch since is listed once for each. Where something runs, it tells the load.

    \b
    Example: chessreg machines
    """
    from chessreg.registry import read as listing

    with fresh(home).read() as session:
        rows = listing.machines(session)
    if not home.json:
        rows = [
            {
                **row,
                "memory": f"{row['memory_bytes'] / 2**30:.0f} GiB",
                "gpus": gpus(row["gpus"]),
                "busy": busy(row["load"]),
            }
            for row in rows
        ]
    emit(home, rows, {"host": "host", "cpu": "processor", "cores": "cores", "memory": "memory", "gpus": "GPUs",
                      "driver": "driver", "torch": "torch", "runs": "runs", "running": "running", "busy": "load",
                      "last_seen": "last seen"})  # fmt: skip


def busy(load: dict[str, Any] | None) -> str:
    """What runs there has told: load of the cores, then each GPU's own and its memory."""
    if not load:
        return ""
    told = [f"{load['cpu']:.1f} of {load['cores']} cores"]
    for gpu in load["gpus"]:
        work = "" if gpu["busy"] is None else f"{100 * gpu['busy']:.0f} %, "
        used, total = gpu["memory_used_bytes"], gpu["memory_bytes"]
        taken = "" if used is None or total is None else f"{used / 2**30:.0f}/{total / 2**30:.0f} GiB"
        told.append(f"GPU {gpu['index']} {work}{taken}".rstrip(", "))
    return "; ".join(told)


def gpus(names: list[Any]) -> str:
    """GPUs of one name together: 4 × NVIDIA A100."""
    counted = {str(name): names.count(name) for name in names}
    return ", ".join(f"{count} × {name}" if count > 1 else name for name, count in counted.items())
