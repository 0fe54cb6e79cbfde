"""One simulated Spark: its life (boot, power), its facts, and what can be done to it."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.testbed import disk as disks
from tests.testbed import facts as hardware
from tests.testbed import faults, processes, sysfs
from tests.testbed.faults import Fault
from tests.testbed.network import (
    FABRIC,
    MANAGEMENT,
    Network,
    fabric_address,
    management_address,
    node_ports,
)
from tests.testbed.options import Options
from tests.testbed.processes import NodeProcess
from tests.testbed.shell import TestbedError, run, wait_until


class Node:
    """Node ``number`` (1..16) of a cluster, called ``spark<number>``."""

    def __init__(self, number: int, folder: Path, network: Network, options: Options) -> None:
        self.number = number
        self.name = f"spark{number}"
        self.folder = folder / self.name
        self.network = network
        self.namespace = network.nodes[number]
        self.options = options
        self.address = management_address(number)
        self.fabric_address = fabric_address(number)
        self.facts = hardware.Facts()
        self.active_faults: list[Fault] = []
        self.disk = disks.Disk(self.folder, self.name, options)
        self._runner: subprocess.Popen[bytes] | None = None
        self._init: tuple[int, str | None] | None = None

    # -- build and power ---------------------------------------------------------------------

    def create(self, public_key: str) -> None:
        """Write keys, facts and empty disks; the host key is kept where there is one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.host_key_file.exists():
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f",
                self.host_key_file)  # fmt: skip
        disks.copy_tools(self.folder / "fake")
        self._render()
        for path, target in sysfs.sys_links().items():
            place = self.folder / "fake/sys" / path
            if not place.is_symlink():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(target)
        self.disk.create(public_key, self.host_key_file)

    @property
    def host_key_file(self) -> Path:
        """Private SSH host key, on the machine; ``.pub`` beside it."""
        return self.folder / "hostkey"

    @property
    def cgroup(self) -> str:
        """Name of the node's own cgroup (systemd flavour)."""
        return f"{self.network.prefix}-{self.name}"

    def begin_start(self) -> None:
        """Begin to boot; `wait_ready` waits for the end."""
        if self.running:
            raise TestbedError(f"{self.name} runs already")
        argv = [self.folder, self.name, self.options.shm_mib]
        drop = self.options.dropped
        binds = ":".join(self.disk.binds())
        if self.options.init == "systemd":
            caps = ",".join(f"CAP_{name.upper()}" for name in drop)
            words = ["unshare", "--mount", "--", disks.ASSETS / "node_systemd.sh", *argv, caps]
            words += [binds, self.namespace, self.cgroup]
        else:
            caps = ",".join(f"-{name}" for name in drop)
            words = ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--mount", "--pid",
                     "--fork", "--uts", "--ipc", "--kill-child", "--",
                     disks.ASSETS / "node_mini.sh", *argv, caps, binds]  # fmt: skip
        with (self.folder / "console.log").open("ab") as log:
            self._runner = subprocess.Popen(
                [str(word) for word in words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        (self.folder / "pid").write_text(str(self._runner.pid))
        self._init = None

    def wait_ready(self) -> None:
        """Wait until sshd listens.

        Raises:
            TestbedError: it does not; the message holds the node's console.
        """
        faults.wait_listening(self)

    def start(self) -> None:
        """Switch the node on: network as built, memory file systems empty, disks as they were."""
        self._end_faults("network", "boot")
        faults.restore_network(self)
        self.begin_start()
        self.wait_ready()

    def stop(self) -> None:
        """Kill everything in the node at once; peers get FIN or RST, then the links go down."""
        self._kill_all()
        for port in node_ports(self.number):
            run("ip", "-n", self.namespace, "link", "set", port.device, "down")

    def power_off(self) -> None:
        """Cut the power: no FIN, no RST, only silence."""
        faults.blackhole(self)
        # sockets of killed processes must not speak again when the node is back
        self.in_network("sysctl", "-qw", "net.ipv4.tcp_orphan_retries=1")
        self.stop()

    def restore_network(self) -> None:
        """Put rules, links, MTU and queues back to how they were built."""
        faults.restore_network(self)

    def _end_faults(self, *scopes: faults.Scope) -> None:
        for fault in reversed(list(self.active_faults)):
            if fault.scope == "network" and "network" in scopes:
                fault.undo()
            elif fault.scope in scopes:
                fault.forget()

    def _kill_all(self) -> None:
        pid = self.init_pid
        if pid is not None:
            processes.send(pid, signal.SIGKILL)  # the kernel kills the whole pid namespace
        if self._runner is not None:
            self._runner.wait(timeout=30)
        elif pid is not None:
            wait_until(lambda: processes.start_time(pid) is None, what=f"{self.name} gone")
        (self.folder / "pid").unlink(missing_ok=True)
        self._runner = None
        self._init = None
        remove_cgroup(self.cgroup)

    def destroy(self) -> None:
        """Stop the node if it runs and unmount its disks."""
        self._end_faults("network", "boot", "disk")
        self._kill_all()
        self.disk.unmount()

    # -- look inside -------------------------------------------------------------------------

    @property
    def init_pid(self) -> int | None:
        """Process 1 of the node as the machine counts; None while it is off."""
        if self._init is not None and processes.start_time(self._init[0]) == self._init[1]:
            return self._init[0]
        self._init = None
        try:
            runner = int((self.folder / "pid").read_text())
            children = Path(f"/proc/{runner}/task/{runner}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        for child in children:
            text = _read_or_empty(Path(f"/proc/{child}/status"))
            if re.search(r"^NSpid:\s+\d+\s+1$", text, re.MULTILINE):
                self._init = (int(child), processes.start_time(int(child)))
                return self._init[0]
        return None

    @property
    def running(self) -> bool:
        """Whether the node is on."""
        return self.init_pid is not None

    def inside(
        self, argv: Sequence[str], *, check: bool = True, stdin: str = "", timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in the node as root, without ssh.

        Raises:
            TestbedError: the node is off, or (with ``check``) the program failed.
        """
        pid = self.init_pid
        if pid is None:
            raise TestbedError(f"{self.name} is off")
        drop = ",".join(f"-{name}" for name in self.options.dropped)
        enter = ["nsenter", "-t", str(pid), "-m", "-p", "-n", "-u", "-i", "-r", "-w", "--"]
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        words = [*enter, "setpriv", "--bounding-set", drop, "env", "-i", path, "HOME=/root", *argv]
        return run(*words, check=check, stdin=stdin, timeout_s=timeout_s)

    def in_network(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run one of the machine's tools in the node's network namespace (works while off)."""
        return run("nsenter", f"--net=/run/netns/{self.namespace}", *argv)

    def read(self, path: str) -> str:
        """Text of a file in the node."""
        return self.inside(["cat", path]).stdout

    def write(self, path: str, text: str) -> None:
        """Replace the text of a file in the node, keeping owner and mode."""
        self.inside(["sh", "-c", 'cat >"$0"', path], stdin=text)

    def console(self) -> str:
        """What the node printed while it booted."""
        return _read_or_empty(self.folder / "console.log")

    def processes(self) -> list[NodeProcess]:
        """Live processes of the node, by node pid; empty while it is off."""
        pid = self.init_pid
        return [] if pid is None else processes.processes_of(pid)

    def kill(self, what: str | int, *, number: signal.Signals = signal.SIGKILL) -> int:
        """Signal one pid of the node, or every process whose command line matches a pattern.

        Process 1 is never matched. Returns how many were signalled.
        """
        chosen = [
            process
            for process in self.processes()
            if (
                process.pid == what
                if isinstance(what, int)
                else process.pid != 1 and re.search(what, process.command)
            )
        ]
        return sum(processes.send(process.machine_pid, number) for process in chosen)

    # -- facts -------------------------------------------------------------------------------

    def set_fact(self, **values: Any) -> None:
        """Change simulated hardware; a running node shows it at once.

        Raises:
            TypeError: no such fact (see `facts.Facts`).
        """
        self.facts = self.facts.changed(**values)
        self._render()
        if self.running and "min_free_kbytes" in values:
            self.write("/proc/sys/vm/min_free_kbytes", f"{self.facts.min_free_kbytes}\n")

    def set_sys(self, path: str, text: str) -> None:
        """Overwrite one simulated file below /sys by hand, until the next `set_fact`.

        Raises:
            TestbedError: the file is not among the simulated ones.
        """
        place = self.folder / "fake/sys" / path.removeprefix("/sys/")
        if not place.is_file():
            raise TestbedError(f"{self.name}: /sys/{path} is not simulated")
        hardware.write_in_place(place, text)

    def _render(self) -> None:
        fake = self.folder / "fake"
        trees = {
            "sys": sysfs.sys_files(self.facts, self.number),
            "proc": hardware.proc_files(self.facts),
            "": hardware.tool_files(self.facts),
        }
        for tree, files in trees.items():
            for path, text in files.items():
                hardware.write_in_place(fake / tree / path, text)
                if path.startswith("bin/"):
                    (fake / path).chmod(0o755)

    # -- sshd --------------------------------------------------------------------------------

    def sshd_listens(self) -> bool:
        """Whether the node's sshd has written its pid file and lives."""
        pid = self.init_pid
        if pid is None:
            if self._runner is not None and self._runner.poll() is not None:
                raise TestbedError(f"{self.name} died while booting:\n{self.console()}")
            return False
        text = _read_or_empty(Path(f"/proc/{pid}/root/run/testbed-sshd.pid"))
        return bool(text.strip())

    def sshd_start(self) -> None:
        """Start sshd and wait until it listens."""
        if self.options.init == "systemd":
            self.inside(["systemctl", "start", "testbed-sshd"])
        else:
            self.inside(["/usr/sbin/sshd", "-f", "/etc/ssh/testbed_sshd_config", "-E",
                         "/run/sshd.log"])  # fmt: skip
        self.wait_ready()

    def sshd_stop(self) -> None:
        """Stop sshd from listening; its sessions go on."""
        if self.options.init == "systemd":
            self.inside(["systemctl", "stop", "testbed-sshd"])
        else:
            self.inside(["sh", "-c", "kill $(cat /run/testbed-sshd.pid)"])
        wait_until(lambda: not self.sshd_listens(), what=f"sshd of {self.name} stopped")

    # -- faults ------------------------------------------------------------------------------

    def heal(self) -> None:
        """Undo every fault that is in force, newest first."""
        for fault in reversed(list(self.active_faults)):
            fault.undo()

    def sshd(self, *, on: bool) -> Fault | None:
        """Stop sshd (gives the fault) or start it again."""
        if not on:
            return faults.sshd_off(self)
        self.sshd_start()
        return None

    def blackhole(self) -> Fault:
        """See `faults.blackhole`."""
        return faults.blackhole(self)

    def loss(self, probability: float) -> Fault:
        """See `faults.loss`."""
        return faults.loss(self, probability)

    def reject_ssh(self) -> Fault:
        """Answer port 22 with a reset."""
        return faults.reject_port(self, 22)

    def reject_port(self, port: int) -> Fault:
        """See `faults.reject_port`."""
        return faults.reject_port(self, port)

    def rate(self, mbit: float, *, device: str = MANAGEMENT) -> Fault:
        """See `faults.rate`."""
        return faults.rate(self, mbit, device)

    def slow(
        self, delay_ms: float, *, jitter_ms: float = 0, loss: float = 0, device: str = MANAGEMENT
    ) -> Fault:
        """See `faults.slow`."""
        return faults.slow(self, delay_ms, jitter_ms=jitter_ms, loss=loss, device=device)

    def link_down(self, *, device: str = FABRIC) -> Fault:
        """See `faults.link_down`."""
        return faults.link_down(self, device)

    def mtu(self, size_bytes: int, *, device: str = FABRIC) -> Fault:
        """See `faults.mtu`."""
        return faults.mtu(self, device, size_bytes)

    def fill(self, folder: str, *, leave_kib: int = 0) -> Fault:
        """See `faults.fill`."""
        return faults.fill(self, folder, leave_kib)

    def readonly(self, mount_point: str = "/mnt/nvme") -> Fault:
        """See `faults.readonly`."""
        return faults.readonly(self, mount_point)

    def hide(self, path: str) -> Fault:
        """See `faults.hidden`."""
        return faults.hidden(self, path)

    def replace(self, path: str, text: str) -> Fault:
        """See `faults.replaced`."""
        return faults.replaced(self, path, text)

    def replace_host_key(self) -> Fault:
        """See `faults.changed_host_key`."""
        return faults.changed_host_key(self)


def remove_cgroup(name: str) -> None:
    """Remove a dead node's cgroups, the deepest first."""
    base = Path("/sys/fs/cgroup")
    for group in (base / name, base / "systemd" / name, base / "unified" / name):
        if group.is_dir():
            below = sorted((p for p in group.rglob("*") if p.is_dir()), key=lambda p: -len(p.parts))
            for folder in [*below, group]:
                wait_until(partial(_rmdir, folder), what=f"empty cgroup {folder}")


def _rmdir(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False  # its last process is not gone yet
    return True


def _read_or_empty(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return ""
