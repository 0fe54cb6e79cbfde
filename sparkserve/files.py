"""Atomic files on this machine: part file, fsync, rename.

A reader sees the old content or the new one, never a mixture; a crash leaves at most a part
file, which nothing reads. This module must not import anything of sparkserve but the errors.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from sparkserve.errors import ConfigError

PART_MARK = ".part-"
"""What the names of unfinished files hold; lists of files skip them."""


def replace_file(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Put content in place of a file; parents are created.

    mode: set before the first byte is written, whatever the umask is.

    Raises:
        OSError: no space, no permission, a folder in the way; the old file is intact and the
            part file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}{PART_MARK}{secrets.token_hex(4)}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.fchmod(descriptor, mode)
            write_all(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def save_file(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Put content in place of one of sparkserve's own files.

    Raises:
        ConfigError: the file cannot be written; it names the path and the system's reason.
    """
    try:
        replace_file(path, content, mode=mode)
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror or error}", hint=f"df -h {path.parent}"
        ) from error


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte, however many calls it takes.

    Raises:
        OSError: as ``os.write`` raises it.
    """
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder survive a power loss.

    Raises:
        OSError: the folder cannot be opened or synced.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
