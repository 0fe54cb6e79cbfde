"""Put a file over a shell: the script that runs on the node, and what its failures mean.

One command does all of it, so there is no state between two round trips that a lost
connection could leave behind: the part file's own shell removes it whatever happens.
"""

from __future__ import annotations

import hashlib
import posixpath
import secrets
import shlex

from sparkserve.errors import ConnectionLostError, NodeError, RemoteError
from sparkserve.files import PART_MARK
from sparkserve.transport.host import Result
from sparkserve.transport.results import no_space

_WRONG_HASH = 91
_SLOWEST_BYTES_PER_S = 100_000
_LEAST_S = 30.0

# Where the connection is gone, stderr is too: without SIGPIPE the clean-up still runs.
# The mode is set while the file is empty, so that a secret is never readable by others.
SCRIPT = f"""\
LC_ALL=C; export LC_ALL
path=$1 part=$2 folder=$3 mode=$4 want=$5
trap 'rm -f -- "$part"' EXIT
trap 'exit 143' HUP INT TERM
trap '' PIPE
mkdir -p -- "$folder" || exit 1
umask 077
: >"$part" && chmod -- "$mode" "$part" && cat >"$part" && sync -- "$part" || exit 1
have=$(sha256sum <"$part") || exit 1
test "${{have%% *}}" = "$want" || {{ echo "sha256 ${{have%% *}}" >&2; exit {_WRONG_HASH}; }}
mv -fT -- "$part" "$path" || exit 1
trap - EXIT
sync -- "$folder"
"""


def put_argv(content: bytes, path: str, mode: int) -> list[str]:
    """The command that takes the content on stdin.

    Raises:
        ValueError: the path is not absolute.
    """
    if not path.startswith("/"):
        raise ValueError(f"put needs an absolute path, got {path!r}")
    part = f"{path}{PART_MARK}{secrets.token_hex(4)}"
    digest = hashlib.sha256(content).hexdigest()
    folder = posixpath.dirname(path)
    return ["sh", "-c", SCRIPT, "put", path, part, folder, f"{mode:04o}", digest]


def put_limit_s(content: bytes) -> float:
    """How long a put may take: generous, because a dead link ends it much earlier."""
    return _LEAST_S + len(content) / _SLOWEST_BYTES_PER_S


def put_error(node: str, path: str, content: bytes, result: Result) -> NodeError:
    """The error for a put that did not end well."""
    if result.status != "exited":
        what = "the connection was lost" if result.status == "lost" else "no end in time"
        return ConnectionLostError(
            node, f"{what} while writing {path}; the old file is intact", hint="sparkserve status"
        )
    if "No space left on device" in result.stderr:
        return no_space(node, path, result)
    if result.exit_code == _WRONG_HASH:
        want = hashlib.sha256(content).hexdigest()
        return RemoteError(
            node,
            f"{path} arrived changed: {result.stderr.strip()}, expected {want}; "
            "the old file is intact",
            result=result,
            hint="check the node's disk and memory",
        )
    folder = shlex.quote(posixpath.dirname(path))
    return RemoteError(
        node,
        f"cannot write {path}: {result.tail(3) or f'exit {result.exit_code}'}",
        result=result,
        hint=f"on {node}: ls -ld {folder}",
    )
