"""Profiles of batch systems: `profiles.toml`, one table a profile, looked for beside the registry and at home.

[gpu]
partition = "a100"
gres = "gpu:1"                        # for shards that may use a GPU
time = "08:00:00"
setup = ["module load cuda/12.4"]     # lines of bash; one that fails ends the job
python = "/home/me/chessreg/.venv/bin/python"
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from chessreg.errors import BadInputError, NotFoundError

FILE = "profiles.toml"
BESIDE = f".chessreg/{FILE}"
DEFAULT = "default"  # the profile of `--on slurm`


class Profile(BaseModel):
    """How to ask a cluster for one shard's worth of machine. What is not given is the cluster's own default."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    gres: str | None = Field(None, description="for shards that may use a GPU, such as gpu:1 or gpu:a100:1")
    constraint: str | None = None
    time: str | None = Field(None, description="walltime of a shard, as Slurm writes it: 30, 08:00:00, 2-00:00:00")
    mem: str | None = Field(None, description="memory of a shard, such as 32G")
    cpus: int | None = Field(None, ge=1, description="cores of a shard for which --threads says nothing")
    options: tuple[str, ...] = Field((), strict=False, description="further options of sbatch, such as --exclude=node7")
    setup: tuple[str, ...] = Field((), strict=False, description="lines of bash before the shard begins")
    python: str | None = Field(None, description="a Python with chessreg, as the nodes see it")
    store: str | None = Field(None, description="the store's folder, where the nodes see it under another name")
    registry: str | None = Field(None, description="the registry's URL, where the nodes reach it by another")
    poll: float = Field(5.0, gt=0, description="seconds between two questions to the batch system")


def places(folder: Path) -> list[Path]:
    """Where profiles of a launch from this folder may stand: what is found first counts."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [*(above / BESIDE for above in (folder, *folder.parents)), config / "chessreg" / FILE]


def profile(name: str, folder: Path) -> Profile:
    """The profile of this name for a launch from this folder. Without a name: `default`, else the cluster's defaults.

    Raises NotFoundError when there is none, BadInputError with the file's name when it cannot be read.
    """
    known: list[str] = []
    for path in dict.fromkeys(places(folder)):
        if not path.is_file():
            continue
        table = read(path)
        if (name or DEFAULT) in table:
            return checked(path, name or DEFAULT, table[name or DEFAULT])
        known += [f"slurm:{other}" for other in table]
    if not name:
        return Profile()
    there = f"there are {', '.join(known)}" if known else f"write it into ./{BESIDE} or ~/.config/chessreg/{FILE}"
    raise NotFoundError(f"there is no profile {name!r}", there)


def read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path} is not TOML: {error}") from error
    except OSError as error:
        raise BadInputError(f"cannot read {path}: {error.strerror}") from error


def checked(path: Path, name: str, table: object) -> Profile:
    where = f"{path}, profile {name}"
    if not isinstance(table, dict):
        raise BadInputError(f"{where}: it is no table", f"write [{name}] and its settings below")
    try:
        return Profile.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        setting = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise BadInputError(
                f"{where}: there is no setting {setting!r}", f"settings are {', '.join(Profile.model_fields)}"
            ) from None
        raise BadInputError(f"{where}: {setting}: {first['msg'].lower()}, not {first['input']!r}") from None
