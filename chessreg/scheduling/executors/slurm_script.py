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
import shlex
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from chessreg.errors import BadInputError, NotFoundError
from chessreg.scheduling.executors import Needs, Work

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
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also bytes that are no UTF-8, numbers of 5,000 digits
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


# -- the batch script -------------------------------------------------------------------------------------------------


def script(works: Sequence[Work], profile: Profile, output: Path) -> str:
    """A script for sbatch. Works in one script share folder, environment and needs; several become an array.

    The command takes the shell's place, so that its exit code is the job's and a signal reaches it and nobody else.
    """
    first = works[0]
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options(works, profile, output))]
    lines += ["", "export CHESSREG_THREADS=${SLURM_CPUS_PER_TASK:-1} OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}"]
    lines += ['if [ -n "$CUDA_VISIBLE_DEVICES" ]; then export CHESSREG_GPU=$CUDA_VISIBLE_DEVICES; fi']
    if profile.store:
        lines += [f"export CHESSREG_JOB_STORE={shlex.quote(profile.store)}"]
    if profile.setup:
        lines += ["set -e", *profile.setup, "set +e"]
    lines += [f"cd {shlex.quote(str(first.cwd))} || exit", ""]
    if len(works) == 1:
        lines += [f"exec {command(first, profile)}"]
    else:
        lines += ["case $SLURM_ARRAY_TASK_ID in"]
        lines += [f"{number}) exec {command(work, profile)} ;;" for number, work in enumerate(works)]
        lines += ["esac"]
    return "\n".join(lines) + "\n"


def options(works: Sequence[Work], profile: Profile, output: Path) -> list[str]:
    """The options of sbatch; those that the profile adds come last, so that they win."""
    first = works[0]
    name = first.name if len(works) == 1 else common(work.name for work in works)
    cpus = first.needs.threads or profile.cpus
    values = {
        "job-name": name,
        "array": f"0-{len(works) - 1}" if len(works) > 1 else None,
        "output": elsewhere(str(output), first, profile.store) if profile.store else str(output),
        "nodes": 1,
        "ntasks": 1,
        "cpus-per-task": cpus,
        "gres": gres(first.needs, profile),
        "partition": profile.partition,
        "account": profile.account,
        "qos": profile.qos,
        "constraint": profile.constraint,
        "time": profile.time,
        "mem": profile.mem,
    }
    lines = [f"--{option}={shlex.quote(str(value))}" for option, value in values.items() if value is not None]
    # One who is preempted ends, and says so: the queue of chessreg puts the job back, as a try of its own.
    return [*lines, "--open-mode=append", "--no-requeue", *profile.options]


def gres(needs: Needs, profile: Profile) -> str | None:
    if needs.device == "cpu":
        return None
    gpu = profile.gres or next((option for option in profile.options if "gpu" in option), None)
    if needs.device.startswith("cuda") and gpu is None:
        raise BadInputError(
            f"--device {needs.device}, but the profile asks for no GPU", 'gres = "gpu:1" in profiles.toml'
        )
    return profile.gres


def command(work: Work, profile: Profile) -> str:
    """The work's command as the nodes write it: with their Python, and their name of the store."""
    argv = [profile.python or work.argv[0], *work.argv[1:]]
    if profile.store:
        argv = [elsewhere(part, work, profile.store) for part in argv]
    return shlex.join(argv)


def elsewhere(part: str, work: Work, store: str) -> str:
    """A path into the work's folder, `STORE/runs/RUN/jobs/JOB`, as it is called where the store has another name."""
    folder = work.folder
    if not part.startswith(f"{folder}/"):
        return part
    inside = Path(part).relative_to(folder.parents[3])
    return str(Path(store) / inside)


def common(names: Iterable[str]) -> str:
    """What shards are called together: `probe 3f2a1c` of `probe 3f2a1c 1/4` and so on."""
    each = [name.split() for name in names]
    kept = [parts[0] for parts in zip(*each, strict=False) if len(set(parts)) == 1]
    return " ".join(kept) or "chessreg"
