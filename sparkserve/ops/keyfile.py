"""Secrets: read from a file that nobody else can read, shown to nobody."""

from __future__ import annotations

import stat
from pathlib import Path

from sparkserve.errors import ConfigError


def read_api_key(path_text: str | None) -> str | None:
    """The key in a file, or None where the profile names no file.

    Raises:
        ConfigError: no such file, readable by others, or empty.
    """
    make = "(umask 077; openssl rand -hex 24 > {path})"
    return read_secret("serving.api_key_file", path_text, make=make)


def read_token(path_text: str | None) -> str | None:
    """The bearer token of a checkpoint's server, or None where no file is named.

    Raises:
        ConfigError: no such file, readable by others, or empty.
    """
    return read_secret("--token-file", path_text, make="(umask 077; cat > {path})")


def read_secret(name: str, path_text: str | None, *, make: str) -> str | None:
    """The one line in a file of mode 0600.

    name: what named the file.
    make: a command that makes one; ``{path}`` stands for the file.

    Raises:
        ConfigError: no such file, readable by others, or empty.
    """
    if path_text is None:
        return None
    path = Path(path_text).expanduser()
    try:
        mode = path.stat().st_mode
        key = path.read_text().strip()
    except OSError as error:
        raise ConfigError(
            f"{name} {path}: {error.strerror}", hint=make.format(path=path)
        ) from error
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(
            f"{name} {path} has mode {stat.S_IMODE(mode):04o}, expected 0600",
            hint=f"chmod 600 {path}",
        )
    if not key or not key.isprintable():
        raise ConfigError(f"{name} {path} holds no key, expected one line of text")
    return key
