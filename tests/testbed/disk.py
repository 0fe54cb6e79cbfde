"""A node's disks: the root disk (upper layer over the machine's own root) and the NVMe.

They are mounted on the machine below the cluster's folder, so they outlive a power cycle as
real disks do, and go with `unmount`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from functools import partial
from pathlib import Path

from tests.testbed.network import management_address
from tests.testbed.options import Options
from tests.testbed.shell import run, wait_until

ASSETS = Path(__file__).parent / "assets"
REPOSITORY = Path(__file__).resolve().parents[2]
USER = "spark"
USER_ID = 1500
HOME = Path("/home") / USER


class Disk:
    """Root disk and NVMe of one node."""

    def __init__(self, folder: Path, name: str, options: Options) -> None:
        self.folder = folder
        self.name = name
        self.options = options
        self.mounts = (folder / "disk", folder / "nvme")

    @property
    def upper(self) -> Path:
        """The written part of the node's root, as seen on the machine."""
        return self.folder / "disk/upper"

    def create(self, public_key: str, host_key: Path) -> None:
        """Mount empty disks and write what makes them a node's."""
        for place in (*self.mounts, self.folder / "root"):
            place.mkdir(parents=True, exist_ok=True)
        size = f"mode=755,size={self.options.disk_mib}m"
        run("mount", "-t", "tmpfs", "-o", size, "testbed-disk", self.folder / "disk")
        self._mount_nvme()
        self.upper.mkdir()
        (self.folder / "disk/work").mkdir()
        self._write_etc(host_key)
        self._write_homes(public_key)
        self._open_paths()
        for tool in (ASSETS / "bin").iterdir():
            _link(self.upper / "usr/local/bin" / tool.name, f"/usr/local/fake/bin/{tool.name}")

    def unmount(self) -> None:
        """Unmount and forget everything on the disks."""
        for place in self.mounts:
            if place.is_dir() and os.path.ismount(place):
                # a killed node's mounts go a moment after its last process
                wait_until(partial(umounted, place), what=f"unmount of {place}", deadline_s=10)
        (self.folder / "nvme.img").unlink(missing_ok=True)

    def _mount_nvme(self) -> None:
        place, size = self.folder / "nvme", self.options.nvme_mib
        if self.options.nvme == "tmpfs":
            run("mount", "-t", "tmpfs", "-o", f"size={size}m", "testbed-nvme", place)
        else:
            image = self.folder / "nvme.img"
            with image.open("wb") as file:
                file.truncate(size << 20)
            run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard", image)
            run("mount", "-o", "loop", image, place)
        place.chmod(0o1777)

    def _write_etc(self, host_key: Path) -> None:
        etc = self.upper / "etc"
        own = {
            "passwd": f"{USER}:x:{USER_ID}:{USER_ID}::{HOME}:/bin/bash",
            "group": f"{USER}:x:{USER_ID}:",
            # "*" and not "!": sshd without PAM refuses locked accounts
            "shadow": f"{USER}:*:20000:0:99999:7:::",
        }
        for name, line in own.items():
            rows = Path("/etc", name).read_text().splitlines()
            kept = [row for row in rows if not _is_ours(row)]
            _write(
                etc / name, "\n".join([*kept, line]) + "\n", 0o640 if name == "shadow" else 0o644
            )
        names = [f"{management_address(n)} spark{n}" for n in range(1, self.options.nodes + 1)]
        _write(etc / "hosts", "\n".join(["127.0.0.1 localhost", *names]) + "\n")
        _write(etc / "hostname", self.name + "\n")
        _write(etc / "machine-id", hashlib.sha256(self.name.encode()).hexdigest()[:32] + "\n")
        _write(etc / "dgx-release", 'DGX_NAME="DGX Spark"\nDGX_SWBUILD_VERSION="7.3.1"\n')
        _write(etc / "sudoers.d/spark", f"{USER} ALL=(ALL) NOPASSWD:ALL\n", 0o440)
        _write(etc / "ssh/testbed_sshd_config", (ASSETS / "sshd_config").read_text())
        _write(etc / "ssh/testbed_hostkey", host_key.read_text(), 0o600)
        _write(etc / "ssh/testbed_hostkey.pub", host_key.with_suffix(".pub").read_text())
        # under the usual name, and without the machine's own keys, which all nodes would share
        _link(etc / "ssh/ssh_host_ed25519_key.pub", "testbed_hostkey.pub")
        os.setxattr(etc / "ssh", "trusted.overlay.opaque", b"y")
        if self.options.init == "systemd":
            self._write_units(etc / "systemd/system")

    @staticmethod
    def _write_units(folder: Path) -> None:
        for name in ("testbed-facts.service", "testbed-sshd.service"):
            _write(folder / name, (ASSETS / name).read_text())
        _link(folder / "default.target", "/lib/systemd/system/multi-user.target")
        wants = folder / "multi-user.target.wants"
        _link(wants / "testbed-sshd.service", "/etc/systemd/system/testbed-sshd.service")
        # the machine's own services must not start in a node
        for other in [wants, *(folder / f"{t}.wants" for t in ("sockets.target", "timers.target"))]:
            other.mkdir(parents=True, exist_ok=True)
            os.setxattr(other, "trusted.overlay.opaque", b"y")

    def _write_homes(self, public_key: str) -> None:
        for home, owner in ((HOME, USER_ID), (Path("/root"), 0)):
            place = self.upper / home.relative_to("/")
            _write(place / ".ssh/authorized_keys", public_key, 0o600)
            for path in (place, place / ".ssh", place / ".ssh/authorized_keys"):
                os.chown(path, owner, owner)
            (place / ".ssh").chmod(0o700)
        home = self.upper / HOME.relative_to("/")
        home.chmod(0o750)
        # nothing of a real home of the same name shows through
        os.setxattr(home, "trusted.overlay.opaque", b"y")

    def _open_paths(self) -> None:
        """Let the node's user reach the repository and the interpreter, and nothing more."""
        for target in (REPOSITORY, Path(sys.executable).resolve(), Path(sys.prefix)):
            for folder in reversed(target.parents):
                mode = folder.stat().st_mode & 0o7777
                if mode & 0o011 != 0o011:
                    copy = self.upper / folder.relative_to("/")
                    copy.mkdir(parents=True, exist_ok=True)
                    copy.chmod(mode | 0o011)

    def binds(self) -> tuple[str, ...]:
        """Folders that the node's own mounts would hide, or that lie beside / on the machine."""
        wanted = [REPOSITORY, Path(sys.prefix), Path(sys.executable).resolve().parents[1]]
        device = Path("/").stat().st_dev
        own = [
            str(path)
            for path in wanted
            if path.stat().st_dev != device or any(map(path.is_relative_to, NODES_OWN))
        ]
        return tuple(dict.fromkeys([*own, *self.options.binds]))


NODES_OWN = ("/tmp", "/run", "/dev", "/mnt/nvme")
"""Where each node mounts file systems of its own over the machine's."""


def _is_ours(row: str) -> bool:
    fields = row.split(":")
    return fields[0] == USER or (len(fields) > 2 and fields[2] == str(USER_ID))


def umounted(place: Path) -> bool:
    """Try to unmount; False while something still uses the place."""
    return run("umount", place, check=False).returncode == 0


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def copy_tools(fake: Path) -> None:
    """Put the scripts that run inside a node into its folder of stand-in tools."""
    fake.mkdir(parents=True, exist_ok=True)
    for name in ("mount_facts.sh", "nodeinit"):
        shutil.copy(ASSETS / name, fake / name)
