"""Host keys as OpenSSH writes them: fingerprints, known_hosts lines, recording one.

Knows nothing of connections; ``ssh.py`` fetches and checks keys.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

from sparkserve.errors import ConfigError
from sparkserve.files import save_file
from sparkserve.paths import known_hosts_file

_DEFAULT_PORT = 22


@dataclass(frozen=True)
class HostKey:
    """One host key of one place."""

    place: str
    """Name in a known_hosts file: ``10.0.0.2`` or ``[10.0.0.2]:2222``."""
    type: str
    """Key type, such as ``ssh-ed25519``."""
    fingerprint_sha256: str
    """As ``ssh-keygen -l`` prints it: ``SHA256:...``."""
    line: str
    """The known_hosts line, without line break."""


def place_of(host: str, port: int) -> str:
    """How known_hosts names a server: the port stands there only if it is not 22."""
    return host if port == _DEFAULT_PORT else f"[{host}]:{port}"


def host_key(place: str, key_type: str, blob: bytes) -> HostKey:
    """Describe a key from its public part in SSH's wire format."""
    text = base64.b64encode(blob).decode("ascii")
    return HostKey(place, key_type, fingerprint(blob), f"{place} {key_type} {text}")


def fingerprint(blob: bytes) -> str:
    """SHA256 fingerprint in OpenSSH's form: base64 without padding."""
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode("ascii")
    return f"SHA256:{digest.rstrip('=')}"


def record_host_key(key: HostKey, *, path: Path | None = None) -> Path:
    """Write a key into our known_hosts file, in place of older ones for the same place.

    Whoever calls has shown the fingerprint and been told to accept it. Lines of other places,
    comments and lines of several names stay as they are.

    path: None = ``paths.known_hosts_file()``.

    Raises:
        ConfigError: the file cannot be read or written.
    """
    path = path or known_hosts_file()
    try:
        old = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    kept = [line for line in old.splitlines() if line.split(" ", 1)[0] != key.place]
    save_file(path, "".join(f"{line}\n" for line in [*kept, key.line]).encode(), mode=0o600)
    return path


def public_blobs(private_key: Path) -> list[bytes]:
    """The public part beside a private key, in wire format; empty where there is none."""
    try:
        fields = private_key.with_name(f"{private_key.name}.pub").read_text().split()
        return [base64.b64decode(fields[1], validate=True)]
    except (OSError, ValueError, IndexError):
        return []
