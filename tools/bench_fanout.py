"""How a launch grows with the nodes: light engine on 4 simulated nodes against 1, in one run.

Measured is what a user waits for, from `sparkserve launch` to its end, less what the light engine
itself is told to take. Prints the medians and their ratio; exit code 1 where 4 nodes take more
than twice as long as 1. Needs root (the simulated nodes are real namespaces with real sshd).
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

RUNS = 5
LIMIT_RATIO = 2.0
SIZES = (1, 4)


def launch_s(fleet: object, ranks: int) -> dict[str, float]:
    """Wall time of one launch in all and of its phases, in seconds; the run is stopped again."""
    began = time.perf_counter()
    done = fleet.launch(ranks)  # type: ignore[attr-defined]
    whole = time.perf_counter() - began
    if done.code != 0:
        raise SystemExit(f"launch on {ranks} nodes failed, nothing is measured: {done.error}")
    record = json.loads(
        next(path for path in Path(os.environ["XDG_STATE_HOME"]).rglob("record.json")).read_text()
    )
    fleet.run("stop", "--now")  # type: ignore[attr-defined]
    for path in sorted(Path(os.environ["XDG_STATE_HOME"]).rglob("record.json")):
        path.unlink()
    return {"whole": whole, **record["timings_s"]}


def main() -> int:
    """Measure, print, judge."""
    from tests.e2e.fleet import Fleet
    from tests.testbed import requirements
    from tests.testbed.cluster import Testbed
    from tests.testbed.options import Options

    reason = requirements.missing("mini")
    if reason is not None:
        print(f"fan-out is not measured here: {reason}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        for name in ("CONFIG", "STATE", "CACHE"):
            os.environ[f"XDG_{name}_HOME"] = str(Path(folder) / name.lower())
        (Path(folder) / "config" / "sparkserve").mkdir(parents=True)
        with Testbed(Options(nodes=max(SIZES))) as testbed:
            fleet = Fleet(testbed, Path(folder))
            taken: dict[int, list[dict[str, float]]] = {size: [] for size in SIZES}
            for turn in range(RUNS + 1):
                for size in SIZES:
                    sample = launch_s(fleet, size)
                    if turn:
                        taken[size].append(sample)
    medians = {
        size: {key: statistics.median(s[key] for s in samples) for key in samples[0]}
        for size, samples in taken.items()
    }
    for size, values in medians.items():
        parts = ", ".join(f"{key} {value:.2f}" for key, value in values.items() if key != "whole")
        print(f"{size} node{'s' if size > 1 else ' '}  {values['whole']:5.2f} s   ({parts})")
    ratio = medians[4]["whole"] / medians[1]["whole"]
    print(f"ratio {ratio:.2f}, limit {LIMIT_RATIO:.0f}")
    return int(ratio > LIMIT_RATIO)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    raise SystemExit(main())
