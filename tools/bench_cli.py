"""How long the command line takes to start, against the bare import of its one dependency.

Prints one line per command: the median of several runs, and its ratio to ``import typer``.
Exit code 1 where ``sparkserve --help`` takes more than 0.3 s, or more than 3 times the import.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 11
LIMIT_S = 0.3
LIMIT_RATIO = 3.0
SPARKSERVE = str(Path(sys.executable).with_name("sparkserve"))
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import typer": [sys.executable, "-c", "import typer"],
    "sparkserve --help": [SPARKSERVE, "--help"],
    "sparkserve --version": [SPARKSERVE, "--version"],
    "sparkserve profile list": [SPARKSERVE, "profile", "list"],
}


def median_s(command: list[str]) -> float:
    """Median wall time of several runs after one that warms the page cache."""
    times = []
    for _ in range(RUNS + 1):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def main() -> int:
    """Measure, print, judge."""
    seconds = {title: median_s(command) for title, command in COMMANDS.items()}
    bare = seconds["import typer"]
    for title, value in seconds.items():
        print(f"{title:26} {value * 1000:7.0f} ms   {value / bare:5.2f} x import typer")
    help_s = seconds["sparkserve --help"]
    too_slow = help_s > LIMIT_S or help_s > LIMIT_RATIO * bare
    verdict = "too slow" if too_slow else "within"
    print(f"sparkserve --help is {verdict}: limit {LIMIT_S} s and {LIMIT_RATIO:.0f} x import typer")
    return int(too_slow)


if __name__ == "__main__":
    raise SystemExit(main())
