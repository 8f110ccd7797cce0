"""`chessreg cluster`: machines connected over ssh into one Ray cluster."""

from __future__ import annotations

import click

from chessreg.cli.base import Group, Home, add_json_option, pass_home, print_output

COLUMNS = {"machine": "machine", "address": "address", "state": "state", "cpus": "CPUs", "gpus": "GPUs"}


@click.group(cls=Group)
def cluster() -> None:
    """Connect machines over ssh into one Ray cluster for `chessreg launch … --on ray`: up, status, down.

    Nodes need the same versions of Python, chessreg and Ray as this machine, and no shared disk: inputs travel to the
    nodes and results travel back.
    """
    from store.files import keep_private

    keep_private()


@cluster.command()
@click.argument("boxes", metavar="BOX…", nargs=-1, required=True)
@click.option(
    "--python",
    metavar="PATH",
    help="A Python with chessreg[ray] on the machines. When left out: the path of this machine's Python.",
)
@click.option(
    "--port", type=click.IntRange(1024, 65535), default=6379, show_default=True, help="Port of the first machine."
)
@add_json_option
@pass_home
def up(home: Home, boxes: tuple[str, ...], python: str | None, port: int) -> None:
    """Start Ray on machines that ssh can log in to without a password, and connect this machine to them.

    BOX is a destination of ssh, such as a host in ~/.ssh/config. The first is the head. If a cluster is up, the
    machines join it, and nodes that have ended start again. After an error or Ctrl-C, Ray is stopped on the machines
    that this command added.

    The machines and this one must be able to connect to each other on all ports. Every port requires a random token.

    \b
    Example: chessreg cluster up box1 box2
             chessreg launch probe --cache fit --on ray --shards 2
    """
    import sys

    from chessreg.scheduling.executors.ray_cluster import start_cluster

    print_output(home, start_cluster(boxes, python or sys.executable, port), COLUMNS)


@cluster.command()
@add_json_option
@pass_home
def status(home: Home) -> None:
    """Show the machines of the cluster: their addresses, whether Ray runs there, CPUs and GPUs.

    \b
    Example: chessreg cluster status
    """
    from chessreg.scheduling.executors.ray_cluster import list_nodes

    print_output(home, list_nodes(), COLUMNS)


@cluster.command()
@click.option(
    "--forget",
    is_flag=True,
    help="Forget machines that do not answer. Their nodes end once they notice that the head has ended.",
)
@add_json_option
@pass_home
def down(home: Home, forget: bool) -> None:
    """Stop Ray on all machines of the cluster. Shards that run there end; their stored units are kept.

    \b
    Example: chessreg cluster down
    """
    from chessreg.scheduling.executors.ray_cluster import stop_cluster

    machines = stop_cluster(forget)
    if home.json:
        print_output(home, {"stopped": machines})
    else:
        click.echo(f"stopped: {', '.join(machines)}" if machines else "no cluster is up", err=True)
