"""Processes are read whatever they are called, and never taken for one another."""

from __future__ import annotations

import subprocess
import sys

from sparkserve.node import processes
from tests.testbed.shell import wait_until

RENAMED = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, bytes.fromhex("%s"), 0, 0, 0)
print("renamed", flush=True); sys.stdin.read()
"""


def test_process_whose_name_is_no_text_hides_no_other() -> None:
    name = b") \xff Z 1 ("
    child = subprocess.Popen(
        [sys.executable, "-c", RENAMED % name.hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"renamed\n"
        assert child.pid in processes.all_processes()
        found = processes.read_process(child.pid)
        assert found is not None
        assert (found.state in "RS", found.rss_bytes > 0) == (True, True)
    finally:
        child.communicate()


def test_zombie_and_other_process_do_not_live() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    try:
        begun = processes.read_process(child.pid)
        assert begun is not None
        assert processes.living(child.pid, begun.start_ticks + 1) is None
        wait_until(
            lambda: processes.living(child.pid, begun.start_ticks) is None, what="it is a zombie"
        )
        assert processes.read_process(child.pid) is not None
    finally:
        child.wait()
