"""``python -m tests.testbed up|down|status|exec``: a simulated cluster to play with (root)."""

from __future__ import annotations

import argparse
import subprocess
import sys

from tests.testbed import requirements
from tests.testbed.cluster import LASTING_PREFIX, Testbed, take_down_lasting
from tests.testbed.options import Options


def main() -> int:
    """Run one subcommand."""
    parser = argparse.ArgumentParser(prog="python -m tests.testbed", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="build a cluster that stays until `down`")
    up.add_argument("--nodes", type=int, default=4)
    up.add_argument("--init", choices=("mini", "systemd"), default="mini")
    up.add_argument("--nvme", choices=("tmpfs", "ext4"), default="tmpfs")
    up.add_argument("--disk-mib", type=int, default=1024)
    verbs.add_parser("down", help="remove it, and what killed test runs left behind")
    verbs.add_parser("status", help="nodes, addresses, processes")
    command = verbs.add_parser("exec", help="run a program in a node, or as the controller")
    command.add_argument("node", help="spark1..spark8, or controller")
    command.add_argument("argv", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.verb == "up":
        return _up(options)
    if options.verb == "down":
        print("removed" if take_down_lasting() else "there was none")
        return 0
    try:
        testbed = Testbed.attach(LASTING_PREFIX)
    except FileNotFoundError:
        print("no cluster; make one with: python -m tests.testbed up", file=sys.stderr)
        return 1
    return _status(testbed) if options.verb == "status" else _exec(testbed, options)


def _up(options: argparse.Namespace) -> int:
    reason = requirements.missing(options.init)
    if reason is not None:
        print(reason, file=sys.stderr)
        return 1
    take_down_lasting()
    chosen = Options(
        nodes=options.nodes, init=options.init, nvme=options.nvme, disk_mib=options.disk_mib
    )
    testbed = Testbed(chosen, prefix=LASTING_PREFIX)
    times = testbed.up()
    print(f"{options.nodes} nodes after {sum(times):.1f} s; cluster file:\n")
    print(testbed.cluster_toml())
    print(f"known hosts: {testbed.known_hosts_file}")
    print(f"controller:  nsenter --net=/run/netns/{testbed.network.controller} -- COMMAND")
    return 0


def _status(testbed: Testbed) -> int:
    for node in testbed.nodes:
        state = f"{len(node.processes())} processes" if node.running else "off"
        print(f"{node.name}  {node.address}  {node.fabric_address}  {state}")
    return 0


def _exec(testbed: Testbed, options: argparse.Namespace) -> int:
    if options.node == "controller":
        return subprocess.run(testbed.controller_argv(options.argv), check=False).returncode
    chosen = [node for node in testbed.nodes if node.name == options.node]
    if not chosen:
        print(f"no node {options.node}", file=sys.stderr)
        return 2
    done = chosen[0].inside(options.argv, check=False, timeout_s=3600)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
