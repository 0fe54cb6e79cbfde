"""How long doctor takes over 4 simulated Sparks and over 16, alternately, in one run.

Measured is what a user waits for: the whole command, from the start of the interpreter to its
end, with JSON output. Prints the median of each size and their ratio; exit code 1 where 4 nodes
take longer than 3 s, or 16 more than 3 times as long as 4. A cluster that is not healthy ends
the run: nothing is measured. Needs root (the simulated nodes are real namespaces with real sshd).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.testbed.cluster import Testbed

SIZES = (4, 16)
LIMIT_S = 3.0
LIMIT_RATIO = 3.0


def write_clusters(testbed: Testbed, folder: Path) -> None:
    """Cluster files ``n4`` and ``n16`` over the first nodes, and their host keys."""
    clusters = folder / "config/sparkserve/clusters"
    clusters.mkdir(parents=True)
    head, *nodes = testbed.cluster_toml(name="all").split("\n[[nodes]]")
    head = "\n".join(line for line in head.splitlines() if not line.startswith("name ="))
    for size in SIZES:
        text = "\n[[nodes]]".join([head + "\n", *nodes[:size]])
        (clusters / f"n{size}.toml").write_text(text)
    (clusters.parent / "known_hosts").write_text(testbed.known_hosts_text())


def doctor_s(testbed: Testbed, folder: Path, size: int) -> float:
    """Wall time of one ``sparkserve doctor`` over the first ``size`` nodes, in seconds.

    Raises:
        SystemExit: it found something, or did not end as it should.
    """
    command = ["-P", "-m", "sparkserve", "doctor", "--cluster", f"n{size}", "--json"]
    places = {f"XDG_{n}_HOME": str(folder / n.lower()) for n in ("CONFIG", "STATE", "CACHE")}
    began = time.perf_counter()
    done = subprocess.run(
        testbed.controller_argv([sys.executable, *command]),
        env={**os.environ, **places, "HOME": str(folder)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    taken = time.perf_counter() - began
    found = json.loads(done.stdout).get("findings", []) if done.stdout.strip() else []
    nodes = {one["node"] for one in found if one["outcome"] == "pass"} - {None}
    bad = [one for one in found if one["outcome"] in ("fail", "unknown")]
    if bad or len(nodes) != size:
        raise SystemExit(f"{size} nodes are not healthy, nothing is measured: {bad}{done.stderr}")
    return taken


def main() -> int:
    """Measure, print, judge."""
    from tests.testbed import requirements
    from tests.testbed.cluster import Testbed
    from tests.testbed.options import Options

    parser = argparse.ArgumentParser(description="time doctor over 4 and 16 simulated nodes")
    parser.add_argument("--runs", type=int, default=5, help="of each size, after one of each")
    runs = parser.parse_args().runs
    reason = requirements.missing("mini")
    if reason is not None:
        print(f"doctor is not measured here: {reason}")
        return 0
    options = Options(nodes=max(SIZES), disk_mib=256, nvme_mib=64, shm_mib=64)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name, Testbed(options) as testbed:
        folder = Path(name)
        write_clusters(testbed, folder)
        taken: dict[int, list[float]] = {size: [] for size in SIZES}
        for turn in range(runs + 1):
            for size in SIZES:
                sample = doctor_s(testbed, folder, size)
                if turn:
                    taken[size].append(sample)
    print(f"{os.cpu_count()} cores, load {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    for size, samples in taken.items():
        spread = f"{min(samples):.2f} to {max(samples):.2f}"
        print(f"{size:2} nodes  {statistics.median(samples):5.2f} s   ({spread}, {runs} runs)")
    few, many = (statistics.median(taken[size]) for size in SIZES)
    print(f"ratio {many / few:.2f}, limit {LIMIT_RATIO:.0f}; 4 nodes within {LIMIT_S:.0f} s")
    return int(few > LIMIT_S or many / few > LIMIT_RATIO)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    raise SystemExit(main())
