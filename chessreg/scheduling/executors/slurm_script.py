"""Slurm profiles (`profiles.toml`, one table each) and the batch scripts made with them.

A profile chooses a job's interpreter and shell commands, so it is read from the user's settings folder, and from
`.chessreg` of a launch's folder and those above it only after `chessreg trust FILE`.

[gpu]
partition = "a100"
gres = "gpu:1"                        # for shards that may use a GPU
time = "08:00:00"
setup = ["module load cuda/12.4"]     # lines of bash; one that fails ends the job
python = "/home/me/chessreg/.venv/bin/python"
"""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from chessreg.errors import BadInputError, NotFoundError
from chessreg.folders import get_config_folder
from chessreg.runs import trust
from chessreg.scheduling.executors import ResourceNeeds, Submission
from chessreg.terminal import make_visible

PROFILE_FILE = "profiles.toml"
PROJECT_PROFILE_FILE = f".chessreg/{PROFILE_FILE}"
DEFAULT_PROFILE = "default"  # profile for `--on slurm`


class SlurmProfile(BaseModel):
    """The resources to request for one shard. Unset options have the cluster's defaults."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    gres: str | None = Field(
        None, description="for shards that may use a GPU, such as gpu:1 or gpu:a100:1; --devices N replaces the number"
    )
    constraint: str | None = None
    time: str | None = Field(None, description="walltime of a shard, as Slurm writes it: 30, 08:00:00, 2-00:00:00")
    warning: int | None = Field(
        None,
        ge=1,
        description="seconds before its time limit at which a shard saves its state and ends, to resume later",
    )
    mem: str | None = Field(None, description="memory of a shard, such as 32G")
    cpus: int | None = Field(None, ge=1, description="cores of a shard without --threads")
    options: tuple[str, ...] = Field((), strict=False, description="further options of sbatch, such as --exclude=node7")
    setup: tuple[str, ...] = Field((), strict=False, description="lines of bash before the shard begins")
    python: str | None = Field(None, description="a Python with chessreg, as the nodes see it")
    store: str | None = Field(None, description="the store's folder, where the nodes see it under another name")
    registry: str | None = Field(None, description="the registry's URL, where the nodes reach it by another")
    poll: float = Field(5.0, gt=0, description="seconds between two questions to the batch system")

    @field_validator("*", mode="after")
    @classmethod
    def _require_one_line(cls, value: object, info: ValidationInfo) -> object:
        texts = value if isinstance(value, tuple) else (value,)
        if info.field_name != "setup" and not all(make_visible(str(text)) == str(text) for text in texts):
            raise ValueError("it must be one line without control characters")
        return value


@dataclass(frozen=True)
class ProfileFile:
    """A file with profiles by name. `refusal` is the reason why chessreg does not use it, or None."""

    path: Path
    tables: Mapping[str, object]
    refusal: trust.NotTrustedError | None


def read_profile_files(folder: Path) -> list[ProfileFile]:
    """Return the profile files for a launch from `folder`, nearest first, the user's own last.

    Raises BadInputError for a file that is not TOML, and NotTrustedError for one inside a store.
    """
    user_file = get_config_folder() / PROFILE_FILE
    paths = dict.fromkeys([*(above / PROJECT_PROFILE_FILE for above in (folder, *folder.parents)), user_file])
    return [read_profile_file(path, path == user_file) for path in paths if os.path.isfile(path)]


def find_profile(name: str, folder: Path) -> SlurmProfile:
    """Return the profile `name` for a launch from `folder`. Without a name: `default`, else the cluster's defaults.

    Raises NotFoundError if no file defines it, NotTrustedError if the nearest file that does is not trusted, and
    BadInputError, naming the file, if it cannot be read.
    """
    names: list[str] = []
    for file in read_profile_files(folder):
        if (name or DEFAULT_PROFILE) in file.tables:
            if file.refusal is not None:
                raise file.refusal
            return parse_profile(file.path, name or DEFAULT_PROFILE, file.tables[name or DEFAULT_PROFILE])
        names += [f"slurm:{other}" for other in file.tables]
    if not name:
        return SlurmProfile()
    hint = f"profiles are {', '.join(names)}" if names else f"define it in {get_config_folder() / PROFILE_FILE}"
    raise NotFoundError(f"profile {name!r} was not found", hint)


def read_profile_file(path: Path, is_own: bool) -> ProfileFile:
    """Read a file with profiles. Unless it is the user's `is_own`, it must be trusted."""
    real, content = trust.read_code_file(path)
    try:
        tables = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # includes invalid UTF-8 and numbers of 5,000 digits
        raise BadInputError(f"{path} is not TOML: {error}") from error
    return ProfileFile(path, tables, None if is_own else trust.make_refusal(real, content, "Slurm profiles"))


def parse_profile(path: Path, name: str, table: object) -> SlurmProfile:
    """Return a profile from its TOML table. Raises BadInputError naming the setting that is wrong."""
    place = f"{path}, profile {name}"
    if not isinstance(table, dict):
        raise BadInputError(f"{place}: not a table", f"write [{name}] and its settings below")
    try:
        return SlurmProfile.model_validate(table)
    except ValidationError as error:
        first_error = error.errors()[0]
        setting = ".".join(str(part) for part in first_error["loc"])
        if first_error["type"] == "extra_forbidden":
            raise BadInputError(
                f"{place}: unknown setting {setting!r}", f"settings are {', '.join(SlurmProfile.model_fields)}"
            ) from None
        raise BadInputError(
            f"{place}: {setting}: {first_error['msg'].lower().removeprefix('value error, ')}, "
            f"not {first_error['input']!r}"
        ) from None


# -- the batch script -------------------------------------------------------------------------------------------------


def make_script(works: Sequence[Submission], profile: SlurmProfile, output: Path) -> str:
    """Return the batch script for submissions with the same folder, environment and needs. Several become a job array.

    The command replaces the shell (exec), so its exit code is the job's and signals reach it directly.
    """
    first_work = works[0]
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in make_sbatch_options(works, profile, output))]
    lines += ["", "export CHESSREG_THREADS=${SLURM_CPUS_PER_TASK:-1} OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}"]
    lines += ['if [ -n "$CUDA_VISIBLE_DEVICES" ]; then export CHESSREG_GPU=$CUDA_VISIBLE_DEVICES; fi']
    if profile.store:
        lines += [f"export CHESSREG_JOB_STORE={shlex.quote(profile.store)}"]
    if first_work.needs.nodes > 1:
        lines += [
            "export PET_MASTER_ADDR=$(hostname)",  # a batch script runs on the first node
            "export PET_MASTER_PORT=$((20000 + ${SLURM_JOB_ID:-0} % 20000))",
            "export PYTHONSAFEPATH=1",  # torchrun's processes import nothing from the working folder either
        ]
    if profile.setup:
        lines += ["set -e", *profile.setup, "set +e"]
    lines += [f"cd {shlex.quote(require_one_line(str(first_work.cwd)))} || exit", ""]
    if len(works) == 1:
        lines += [f"exec {make_node_command(first_work, profile)}"]
    else:
        lines += ["case $SLURM_ARRAY_TASK_ID in"]
        lines += [f"{number}) exec {make_node_command(work, profile)} ;;" for number, work in enumerate(works)]
        lines += ["esac"]
    return "\n".join(lines) + "\n"


def make_sbatch_options(works: Sequence[Submission], profile: SlurmProfile, output: Path) -> list[str]:
    """Return the options of sbatch. The profile's additional options come last and take precedence."""
    first_work = works[0]
    name = make_job_name(first_work.name if len(works) == 1 else make_common_name(work.name for work in works))
    cpus = first_work.needs.threads or profile.cpus
    values = {
        "job-name": name,
        "array": f"0-{len(works) - 1}" if len(works) > 1 else None,
        "output": make_output_pattern(
            format_node_path(str(output), first_work, profile.store) if profile.store else str(output)
        ),
        "nodes": first_work.needs.nodes,
        "ntasks": first_work.needs.nodes,
        "cpus-per-task": cpus,
        "gres": format_gres(first_work.needs, profile),
        "partition": profile.partition,
        "account": profile.account,
        "qos": profile.qos,
        "constraint": profile.constraint,
        "time": profile.time,
        "signal": f"B:USR1@{profile.warning}" if profile.warning and first_work.needs.nodes == 1 else None,
        "mem": profile.mem,
    }
    lines = [f"--{option}={quote_option(str(value))}" for option, value in values.items() if value is not None]
    # A preempted job ends, and chessreg requeues it as a new attempt.
    return [*lines, "--open-mode=append", "--no-requeue", *profile.options]


def quote_option(value: str) -> str:
    """Quote an option value for a line of an sbatch script, in which backslashes escape inside quotes.

    >>> print(quote_option("a100"), quote_option('a "b"'))
    a100 "a \\"b\\""

    Raises BadInputError for control characters.
    """
    if re.fullmatch(r"[\w./:,=+@%-]+", value, re.ASCII):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", require_one_line(value)) + '"'


def require_one_line(text: str) -> str:
    """Return `text`. Raises BadInputError if it contains a line break or another control character."""
    if make_visible(text) != text:
        raise BadInputError(
            f"a Slurm script cannot hold {text!a}: it contains a control character", "rename the folder"
        )
    return text


def make_job_name(name: str) -> str:
    """Return `name` in one line of at most 100 letters, digits, spaces and `.,:=+@/()-`.

    Clusters pass job names to mail programs and shells.

    >>> make_job_name("probe x=$(id)\\n2/4")
    'probe x=_(id) 2/4'
    """
    return re.sub(r"[^\w .,:=+@/()-]", "_", " ".join(name.split()))[:100].strip() or "chessreg"


def make_output_pattern(path: str) -> str:
    """Return a log path for Slurm's --output, with `%` doubled except in the file name, which may be `%a.txt`.

    Raises BadInputError for a backslash, which Slurm cannot represent.
    """
    folder, _, name = path.rpartition("/")
    if "\\" in folder:
        raise BadInputError(f"Slurm cannot write a log into {folder!a}: it contains a backslash", "rename the folder")
    return f"{folder.replace('%', '%%')}/{name}"


def format_gres(needs: ResourceNeeds, profile: SlurmProfile) -> str | None:
    """Return the generic resources to request. Raises BadInputError if a required GPU is missing in the profile."""
    if needs.device == "cpu":
        return None
    gpu = profile.gres or next((option for option in profile.options if "gpu" in option), None)
    if needs.device.startswith("cuda") and gpu is None:
        raise BadInputError(
            f"--device {needs.device}, but the profile asks for no GPU", 'gres = "gpu:1" in profiles.toml'
        )
    if profile.gres is None or needs.devices == 1:
        return profile.gres
    kind = re.sub(r":\d+$", "", profile.gres)
    return f"{kind}:{needs.devices}"


def make_node_command(work: Submission, profile: SlurmProfile) -> str:
    """Return the command for the node, with the profile's Python and store path."""
    argv = [profile.python or work.argv[0], *work.argv[1:]]
    if profile.store:
        argv = [format_node_path(part, work, profile.store) for part in argv]
    if work.needs.nodes == 1:
        return shlex.join(argv)
    place = argv.index("-m")
    torchrun = [*argv[: place + 1], "torch.distributed.run", f"--nnodes={work.needs.nodes}"]
    torchrun += [f"--nproc-per-node={work.needs.devices}", "--max-restarts=0"]
    return f"{START_ON_NODES} {shlex.join([*torchrun, *argv[place:]])}"


START_ON_NODES = """\
srun --ntasks-per-node=1 --kill-on-bad-exit=1 bash -c 'PET_NODE_RANK=$SLURM_PROCID exec "$@"' torchrun"""
"""One torchrun per node. Each reads its other settings from the environment."""


def format_node_path(part: str, work: Submission, store: str) -> str:
    """Return `part` as a path on the node: the submission's folder, `STORE/runs/RUN/jobs/JOB`, is in the node's path
    `store`.

    A part that is not a path in this folder is returned unchanged.
    """
    folder = work.folder
    if not part.startswith(f"{folder}/"):
        return part
    relative_path = Path(part).relative_to(folder.parents[3])
    return str(Path(store) / relative_path)


def make_common_name(names: Iterable[str]) -> str:
    """Return the common part of shard names: `probe 3f2a1c` for `probe 3f2a1c 1/4` and so on."""
    each = [name.split() for name in names]
    common_parts = [parts[0] for parts in zip(*each, strict=False) if len(set(parts)) == 1]
    return " ".join(common_parts) or "chessreg"
