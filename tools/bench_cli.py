"""How long the command line takes to start, against the bare import of its one dependency.

Prints one line per command and a verdict, or one JSON document with ``--json``. The commands
take turns, and the best of several rounds counts: what else the machine does slows all alike.
Exit code 1 where ``sparkserve --help`` takes more than 0.3 s, or more than 3 times the import.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 0.3
LIMIT_RATIO = 3.0
IMPORT = "import typer"
HELP = "sparkserve --help"
SPARKSERVE = str(Path(sys.executable).with_name("sparkserve"))
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    IMPORT: [sys.executable, "-c", "import typer"],
    HELP: [SPARKSERVE, "--help"],
    "sparkserve launch --help": [SPARKSERVE, "launch", "--help"],
    "sparkserve --version": [SPARKSERVE, "--version"],
    "sparkserve profile list": [SPARKSERVE, "profile", "list"],
}


def wall_s(command: list[str]) -> float:
    """Wall time of one run in seconds."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def measure(rounds: int) -> dict[str, float]:
    """Best wall time of each command, after a round that warms the page cache."""
    for command in COMMANDS.values():
        wall_s(command)
    times: dict[str, list[float]] = {title: [] for title in COMMANDS}
    for _ in range(rounds):
        for title, command in COMMANDS.items():
            times[title].append(wall_s(command))
    return {title: min(found) for title, found in times.items()}


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    best_s = measure(options.rounds)
    ratio = best_s[HELP] / best_s[IMPORT]
    within = best_s[HELP] <= LIMIT_S and ratio <= LIMIT_RATIO
    if options.json:
        document = {
            "schema_version": 1,
            "rounds": options.rounds,
            "best_s": {title: round(value, 4) for title, value in best_s.items()},
            "help_s": round(best_s[HELP], 4),
            "help_ratio": round(ratio, 3),
            "limits": {"help_s": LIMIT_S, "help_ratio": LIMIT_RATIO},
            "within": within,
        }
        print(json.dumps(document, indent=2))
        return int(not within)
    for title, value in best_s.items():
        print(f"{title:26} {value * 1000:7.0f} ms   {value / best_s[IMPORT]:5.2f} x {IMPORT}")
    verdict = "within" if within else "too slow"
    print(f"{HELP} is {verdict}: limit {LIMIT_S} s and {LIMIT_RATIO:.0f} x {IMPORT}")
    return int(not within)


if __name__ == "__main__":
    raise SystemExit(main())
