"""The plan of `chessreg cluster`, and its errors, with an ssh that stays on this machine."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from chessreg.cli.root import run_command_line
from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.scheduling.executors import ray_cluster, ray_node
from chessreg.scheduling.executors.ray import RayExecutor

SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
case $2 in gone) echo "ssh: connect to host gone port 22: No route to host" >&2; exit 255;; esac
echo "Authorized use only" >&2
SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22" XDG_CACHE_HOME={folder} exec sh -c "$3"
"""


@pytest.fixture(autouse=True)
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(SSH.format(folder=tmp_path / "box"))
    (tmp_path / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_first_machine_is_the_head_and_this_one_has_no_work(tmp_path: Path) -> None:
    addresses = {"box1": "10.0.0.1", "box2": "10.0.0.2", ray_cluster.THIS_MACHINE: "10.0.0.9"}
    planned = ray_cluster.Cluster("10.0.0.1:6380", "secret", {"box1": "/py", "box2": "/py"}, addresses)
    requests = planned.make_requests("start", addresses, "10.0.0.9:5000")
    commands = {box: ray_node.build_ray_command(each, tmp_path) for box, each in requests.items()}
    for box, address in addresses.items():
        assert f"--node-ip-address={address}" in commands[box]
        assert ("--head" in commands[box]) is (box == "box1")
        assert ("--address=10.0.0.1:6380" in commands[box]) is (box != "box1")
        assert ("--num-cpus=0" in commands[box]) is (box == ray_cluster.THIS_MACHINE)
        assert not any("secret" in word for word in commands[box])
    assert {"--port=6380", "--include-dashboard=false"} <= set(commands["box1"])
    assert [each["callback"] for each in requests.values()] == ["10.0.0.9:5000"] * 2 + [""]


def test_on_ray_is_the_cluster_that_is_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        made = ray_cluster.Cluster(address, "secret", {"box1": "/py"}, {ray_cluster.THIS_MACHINE: "10.0.0.9"})
        with ray_cluster.lock_cluster():
            made.save()
            with pytest.raises(ChessregError, match="another `chessreg cluster`"):
                ray_cluster.stop_cluster()
        assert ray_cluster.read_cluster() == made
        assert RayExecutor().address == address
        assert ray_cluster.build_driver_environment(address)["RAY_AUTH_TOKEN"] == "secret"
        assert ray_cluster.build_driver_environment("127.0.0.1:1") == {}, "another cluster never gets the token"
    with pytest.raises(NotFoundError, match="no Ray cluster responds"):
        RayExecutor()


def test_errors_are_one_line_and_nothing_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, said in (
            (["box1", "gone"], "gone: ssh: connect to host gone port 22: No route to host"),
            (["box1", "--python", "/nowhere/python"], "box1: sh: .*/nowhere/python: not found"),
            (["-x"], "has no option -x"),
            (["box1", "--port", port], f"box1: port {port}: Address already in use"),
        ):
            assert run_command_line(["cluster", "up", *words]) != 0
            lines = capsys.readouterr().err.splitlines()
            assert len(lines) == 2, lines
            assert re.match(f"error: .*{said}", lines[0]), lines
            assert lines[1].startswith("hint: ")
    assert not ray_cluster.get_cluster_file().exists()
    assert not list((tmp_path / "box").rglob("*.json"))
    with pytest.raises(BadInputError, match="not a destination"):
        ray_cluster.start_cluster(["-oProxyCommand=touch pwned"], "python3")


def test_versions_must_be_equal() -> None:
    versions = ray_node.describe_machine({})["versions"]
    ray_cluster.require_equal_versions("box1", "/py", versions)
    for name, there, said in (
        ("ray", None, "no ray"),
        ("ray", "2.0.0", "ray 2.0.0"),
        ("Python", "3.9.1", "Python 3.9.1"),
    ):
        with pytest.raises(ChessregError, match=f"box1 has {said}, this machine {versions[name]}"):
            ray_cluster.require_equal_versions("box1", "/py", versions | {name: there})
