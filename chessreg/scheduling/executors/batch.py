"""The batch script of a work, or of several as an array of Slurm. It holds no secret: the environment travels apart."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from chessreg.errors import BadInputError
from chessreg.scheduling.executors import Needs, Work
from chessreg.scheduling.executors.profiles import Profile


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
    asked = {
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
    found = [f"--{option}={shlex.quote(str(value))}" for option, value in asked.items() if value is not None]
    # One who is preempted ends, and says so: the queue of chessreg puts the job back, as a try of its own.
    return [*found, "--open-mode=append", "--no-requeue", *profile.options]


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
    kept = [words[0] for words in zip(*each, strict=False) if len(set(words)) == 1]
    return " ".join(kept) or "chessreg"
