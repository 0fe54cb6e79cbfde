"""Who and where the node is: user, home, architecture, kernel, clock, resolved root."""

from __future__ import annotations

from sparkserve.facts.keyed import parse_keyed
from sparkserve.facts.probe import Context, Probe
from sparkserve.model.base import Model


class HostFacts(Model):
    """The node's identity."""

    hostname: str
    user: str
    home: str
    root: str
    """The sparkserve root with ``~`` resolved on the node."""
    architecture: str
    kernel: str
    cpu_count: int
    time_s: float
    """Unix time by the node's clock."""
    ssh_address: str | None
    """The node's own address in the SSH connection; None when asked without SSH."""


def _script(_: Context) -> str:
    return """\
echo "hostname=$(hostname 2>/dev/null || cat /proc/sys/kernel/hostname)"
echo "user=$(id -un)"
echo "home=$HOME"
echo "root=$ROOT"
echo "architecture=$(uname -m)"
echo "kernel=$(uname -r)"
echo "cpu_count=$(getconf _NPROCESSORS_ONLN)"
echo "time_s=$(date +%s.%N)"
set -- $SSH_CONNECTION
echo "ssh_address=${3:-}"
"""


def _parse(text: str) -> HostFacts:
    fields = parse_keyed(text)
    return HostFacts.model_validate(fields | {"ssh_address": fields.get("ssh_address") or None})


IDENTITY = Probe("host.identity", HostFacts, _script, _parse)
