"""``python -m sparkserve.node``: the commands that the controller runs on a node."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

from sparkserve.errors import SparkserveError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sparkserve.node", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("guard", "start the engine of an engine.json and watch it"),
        ("boot", "check an engine.json and become the engine"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--spec", type=Path, required=True)
    for name, text in (
        ("follow", "print what happens to a run as NDJSON until it ends"),
        ("status", "print a run's state as JSON"),
        ("stop", "end a run on this node"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--run-dir", type=Path, required=True)
        if name == "follow":
            command.add_argument("--new", action="store_true", help="only lines from now on")
        if name == "stop":
            command.add_argument("--now", action="store_true", help="do not drain requests")
    for name, text in (
        ("pack", "pack a rank's Engram rows as a job file says; events as NDJSON"),
        ("verify-engram", "judge a rank's packed Engram rows; events as NDJSON"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--job", type=Path, required=True)
    command = commands.add_parser("runs", help="list the runs of a root as JSON")
    command.add_argument("--root", type=Path, required=True)
    return parser


def main() -> None:
    """Run one command; a known failure is one line on stderr and its exit code."""
    options = _parser().parse_args()
    try:
        _run(options)
    except SparkserveError as error:
        sys.stderr.write(f"error: {error.message}\n")
        raise SystemExit(error.exit_code) from error


def _run(options: argparse.Namespace) -> None:
    # Imports stand here because follow and status must start in a fraction of a second.
    match options.command:
        case "guard":
            from sparkserve.node import guard

            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
            guard.run(options.spec)
        case "boot":
            from sparkserve.node import boot

            boot.run(options.spec)
        case "follow":
            from sparkserve.node import follow

            follow.run(options.run_dir, new_only=options.new)
        case "pack" | "verify-engram":
            from sparkserve.node import pack

            work = pack.pack if options.command == "pack" else pack.verify
            raise SystemExit(work(options.job))
        case _:
            from sparkserve.node import control

            answer: object
            if options.command == "runs":
                answer = control.runs(options.root)
            elif options.command == "stop":
                answer = control.stop(options.run_dir, gentle=not options.now)
            else:
                answer = control.status(options.run_dir)
            sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
