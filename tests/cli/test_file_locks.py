"""Every command is typed in a process that has the registry open already: none of them drops a lock of that process."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from chessreg.cli.root import root, run_command_line
from chessreg.scheduling.presence import Presence
from chessreg.session import Session

from ..file_locks import HAS_PROC_LOCKS, holds_log, read_once, watched

pytestmark = pytest.mark.skipif(not HAS_PROC_LOCKS, reason="reads /proc/locks")

TOY = Path(__file__).parent.parent / "kinds" / "toy_kind.py"
DATA = Path(__file__).parents[2] / "chessreg" / "data"
ANNOTATE = (
    "archive",
    "invalidate",
    "name",
    "note",
    "pin",
    "restore",
    "star",
    "tag",
    "unmark",
    "unpin",
    "unstar",
    "untag",
)
# The typed lines, in this order. {f} is a folder of the test, {w} the world shared with other tests.
LINES = f"""
init
db status
config
db upgrade
db backup
db backup --to {{f}}/copy.db
doctor
doctor --digests
status
machines
recover
dataset list
dataset show sample
dataset verify sample
dataset overlap sample:fit sample:test
dataset add {{w}}/games.pgn --min-plies 2 --name again
dataset split again --parts a=0.5,b=0.5
dataset generate --games 2 --levels 0 --search-nodes 10 --name played
checkpoint list
checkpoint show reference
checkpoint twin reference --name untrained
import checkpoint {{w}}/twin --name twin
import vector {DATA}/sample-direction.pth --name imported
import results {DATA}/sample-training.log --checkpoint reference --name results
export checkpoint reference {{f}}/exported
export runs kind:probe --to ro-crate:{{f}}/crate
elo 3 2 1
checkpoint export reference {{f}}/exported-again
run {TOY} --positions 2 --name toy
run {TOY} --positions 3 --dry-run
run probe --cache reference-fit --epochs 1 --seed 1 --name probe
runs list
runs show toy
runs conflicts
launch {TOY} --positions 4 --name job
jobs
job show job
priority job --set 5
cancel job
retry job
supervisor run --idle 0
wait job
logs job
attach job
supervisor status
supervisor stop
supervisor start
cache list
cache show reference-fit
cache verify reference-fit
cache export reference-fit {{f}}/activations
probe list
probe show reference-board
vector list
vector show skill --layer 0
sae list
lineage reference-board
compare toy job
invalidate toy --why wrong
unmark toy
completion bash
reproduce toy
reproduce toy --rerun
push toy reference --to {{f}}/place --registry-rows
pull reference --from {{f}}/place/store
merge {{f}}/place
merge {{f}}/copy.db
trust --list
gc
gc --remove
query --list
query "best probe layers"
query --sql "SELECT count(*) FROM runs"
query --sql "SELECT count(*) FROM runs" --output {{f}}/rows.csv
plot --list
plot "loss curves" --output {{f}}/figure.svg
game list
game show plain 0
game export plain --pgn {{f}}/games.pgn
game part plain:0
board plain:0
board reference-board:0
board plain:0 --svg {{f}}/board.svg
lab --checkpoint reference --moves e4
uci reference
engine list
engine ladder
paper list
paper karvonen --checkpoint reference --dataset sample --dry-run
fetch
trust {TOY}
trust --revoke {TOY}
runs list --json
runs tag job slow
runs untag job slow
runs note job text
runs star job
runs unstar job
runs pin job
runs unpin job
runs invalidate job --why wrong
runs unmark job
runs archive job
runs restore job
runs name job other
"""
# Their code is that of another line.
SAME = {
    *(f"{noun} {word}" for noun in ("dataset", "checkpoint") for word in ANNOTATE),  # as of runs
    "paper davis", "paper junkin", "import sae", "sae export", "sae show", "sae verify",
    "dataset export", "import probe", "heatmap",
    "dataset fetch",  # downloads a month of games
    "cluster up", "cluster status", "cluster down",  # open no registry
    "demo",  # types other commands
    "mcp",  # tests/test_mcp_server.py
    "tui",  # tests/tui/test_file_locks.py
}  # fmt: skip


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every command; of the commands of kinds (tests/kinds/test_every_kind.py covers them) only `run` and `launch`."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group) and name not in ("run", "launch"):
            yield from leaves(command, (*path, name))
        else:
            yield " ".join((*path, name))


def test_every_command_is_typed_below() -> None:
    typed = [f"{line} " for line in LINES.strip().splitlines()]
    left = [name for name in leaves(root) if not any(line.startswith(f"{name} ") for line in typed)]
    assert set(left) == SAME


@pytest.mark.slow
def test_no_command_drops_a_lock(
    world: Path,
    world_session: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    registry, database = world / "registry.db", world_session.database
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("quit\n"))
    monkeypatch.setattr(Presence, "start", lambda self, url: None)  # the supervisor is run here
    failed = []
    for line in LINES.strip().splitlines():
        read_once(database)
        assert holds_log(registry)
        words = shlex.split(line.format(f=tmp_path, w=world))
        with watched(registry, monkeypatch):
            status = run_command_line(["--registry", str(registry), "--store", str(world / "store"), *words])
        read_once(database)
        assert holds_log(registry), line
        said = capsys.readouterr().err
        if status:
            failed.append((line, status, said[-300:]))
    assert not failed, "\n".join(map(str, failed))
