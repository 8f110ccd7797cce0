"""Batch scripts made from hostile texts: a registry's text is a name or a path there, and never a command."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chessreg.errors import BadInputError
from chessreg.registry.identity import make_id
from chessreg.scheduling.executors import ResourceNeeds, Submission
from chessreg.scheduling.executors.slurm_script import SlurmProfile, make_job_name, make_script

HOSTILE = (
    "a\n#SBATCH --wrap='touch pwned'\ntouch pwned #", "a\rtouch pwned\r\n", "a\u2028touch pwned\u2029\x85touch pwned",
    "$(touch pwned)", "`touch pwned`", "'; touch pwned; '", '"; touch pwned; "', "50%j %% %x %A_%a", "!! !touch",
    "a#b # c", "a b\t c", "--wrap=x", "~ * ? [a] {a,b} $HOME ${PATH}", "<(touch pwned) >pwned", "ünï 棋", "a=b c:d",
)  # fmt: skip
TEXTS = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(st.sampled_from("ab \n\r\t\u2028'\"`$(){}!%#;&|<>\\*?~-=:/\x1b"), min_size=1, max_size=30),
)


def work(folder: Path, name: str, cwd: str, argument: str, job: str = "j") -> Submission:
    id = make_id()
    argv = ("/usr/bin/printf", "%s\\0", argument)
    return Submission(
        id, id, argv, folder / "store" / "runs" / "r" / "jobs" / job, Path(cwd), {}, ResourceNeeds("cpu", 1), name
    )


def read_options(text: str) -> list[str]:
    """The options in a script as sbatch reads them: of the comments before the first other line, in its own quoting."""
    options = []
    for line in text.split("\n")[1:]:
        if not line.startswith("#"):
            break
        assert line.startswith("#SBATCH "), line
        value, quote, characters = "", "", iter(line.removeprefix("#SBATCH "))
        for character in characters:
            if character == "\\":
                value += next(characters)
            elif character == quote:
                quote = ""
            elif not quote and character in "'\"":
                quote = character
            else:
                assert quote or character not in " #", line
                value += character
        options.append(value)
    return options


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS, TEXTS, st.booleans())
@example(HOSTILE[0], HOSTILE[0], HOSTILE[0], False)
@example(HOSTILE[7], HOSTILE[7], HOSTILE[7], True)
def test_names_and_paths_of_a_registry_are_no_commands(
    tmp_path_factory: pytest.TempPathFactory, name: str, folder: str, argument: str, array: bool
) -> None:
    root = tmp_path_factory.getbasetemp() / "fuzz"
    cwd = root / f"in {folder.replace('/', '_')}"
    works = [work(root, name, str(cwd), argument, job) for job in ("j", "k")[: 1 + array]]
    try:
        text = make_script(works, SlurmProfile(), cwd / ("%a.txt" if array else "log.txt"))
    except BadInputError as error:
        refused = error.message
    else:
        refused = ""
    if refused:
        assert not cwd.name.isprintable() or "\\" in cwd.name
        assert refused.isprintable()
        return
    options = dict(option.removeprefix("--").partition("=")[::2] for option in read_options(text))
    assert set(options) == {
        "job-name", "output", "nodes", "ntasks", "cpus-per-task", "open-mode", "no-requeue", *(["array"] * array),
    }  # fmt: skip
    assert options["job-name"].isprintable()
    assert not set(options["job-name"]) & set("'\"`$!%;&|<>\\*?#{}\n")
    pattern, _, file = options["output"].rpartition("/")
    assert pattern.replace("%%", "") == pattern.replace("%", ""), "each % is one of a pair"
    assert (pattern.replace("%%", "%"), file) == (str(cwd), "%a.txt" if array else "log.txt")
    cwd.mkdir(parents=True, exist_ok=True)
    assert subprocess.run(["bash", "-n"], input=text, text=True, cwd=root).returncode == 0
    environment = {"PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "1"}
    done = subprocess.run(["bash"], input=text.encode(), cwd=cwd, env=environment, capture_output=True, check=True)
    assert done.stdout.decode() == f"{argument}\0"
    assert done.stderr == b""
    assert not list(root.rglob("pwned"))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_jobs_name_is_one_line_of_plain_characters(text: str) -> None:
    assert make_job_name(text).isprintable()
    assert not set(make_job_name(text)) & set("'\"`$!%;&|<>\\*?#{}")
    assert make_job_name("probe epochs=2 games=1,000 2/4") == "probe epochs=2 games=1,000 2/4"
    assert make_job_name("\n") == "chessreg"
    assert len(make_job_name(text * 100)) <= 100


def test_a_folder_with_a_line_break_is_refused_wherever_the_log_is(tmp_path: Path) -> None:
    for folder in ("a\nb", "a\rb", "a\x1bb", "a\u2028b"):
        with pytest.raises(BadInputError, match="control character"):
            make_script([work(tmp_path, "probe", str(tmp_path / folder), "x")], SlurmProfile(), tmp_path / "log.txt")


@pytest.mark.parametrize(
    ("gres", "devices", "asked"),
    [("gpu:1", 1, "gpu:1"), ("gpu:1", 4, "gpu:4"), ("gpu:a100:1", 2, "gpu:a100:2"), ("gpu:a100", 2, "gpu:a100:2")],
)
def test_a_training_on_several_devices_asks_for_as_many_gpus(
    tmp_path: Path, gres: str, devices: int, asked: str
) -> None:
    one = replace(work(tmp_path, "train", str(tmp_path), "x"), needs=ResourceNeeds("cuda", devices=devices))
    script = make_script([one], SlurmProfile(gres=gres), tmp_path / "log.txt")
    assert f"--gres={asked}" in read_options(script)
