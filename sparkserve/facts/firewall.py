"""What may pass: forwarding, packet filters, connections and echoes that were tried."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Literal, Self

from sparkserve.facts.packet_rules import Chain, iptables_list, iptables_save, nft_ruleset
from sparkserve.facts.probe import Context, UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.facts.sysfs import is_absent, wherever
from sparkserve.model.base import Model
from sparkserve.model.reading import Reading


class Forwarding(Fact):
    """Whether the kernel passes packets on from one interface to another."""

    ip_forward: bool


class PacketFilter(Fact):
    """Chains of the packet filter, as far as they were read."""

    chains: tuple[Chain, ...] = ()

    def merged(self, other: Self) -> Self:
        """Both readings; the first one of a chain counts."""
        known = {chain.name for chain in self.chains}
        more = tuple(chain for chain in other.chains if chain.name not in known)
        return self.model_copy(update={"chains": self.chains + more})

    def chain(self, name: str) -> Chain | None:
        """The chain of that name; None where it was not read."""
        return next((chain for chain in self.chains if chain.name == name), None)


class UfwRule(Model):
    """One line of ``ufw status``."""

    to: str
    action: str
    """Such as ``ALLOW IN``."""
    source: str

    @property
    def is_open(self) -> bool:
        """Whether it lets every port in."""
        plain = re.sub(r"\s*\(.*?\)", "", self.to).strip()
        anywhere = re.fullmatch(r"Anywhere(?: on \S+)?", plain) is not None
        return self.action.startswith("ALLOW") and "OUT" not in self.action and anywhere

    @property
    def interface(self) -> str | None:
        """The interface that it speaks of."""
        found = re.search(r" on (\S+)", self.to)
        return found[1] if found else None


class Ufw(Fact):
    """Ubuntu's firewall."""

    is_active: bool
    default_incoming: str | None = None
    """``deny``, ``reject``, ``allow``; None = not said."""
    rules: tuple[UfwRule, ...] = ()


class Connection(Model):
    """One TCP connection that was tried."""

    address: str
    port: int
    result: Literal["ok", "timeout", "refused", "unreachable"]
    elapsed_s: float | None = None


class Connections(Fact):
    """Connections tried from one place to listeners that were opened for it."""

    tried: tuple[Connection, ...] = ()
    target: str | None = None
    """Name of the place at the other end, where the reading says it."""


class ClientConnections(Fact):
    """Connections of a client to a service, with their times."""

    tried: tuple[Connection, ...] = ()


class Echo(Model):
    """Echo requests to one address."""

    address: str
    sent: int
    received: int
    payload_bytes: int | None = None
    too_long: bool = False
    """Whether some hop said that the packet is too long to pass unbroken."""


class Echoes(Fact):
    """Pings from one place."""

    echoes: tuple[Echo, ...] = ()


def _ip_forward(reading: Reading) -> list[Fact]:
    found = re.search(r"(?:ip_forward\s*[=:]\s*|^\s*)([01])\s*$", reading.text, re.M)
    if found is None:
        raise UnusableOutput("neither 0 nor 1 for net.ipv4.ip_forward")
    return [Forwarding(ip_forward=found[1] == "1")]


_DENIED = re.compile(r"Permission denied|must be root|Operation not permitted|password is required")


def _filter(reading: Reading) -> list[Fact]:
    if _DENIED.search(reading.text):
        raise UnusableOutput("the packet filter may be listed by root only")
    if is_absent(reading) and "chain" not in reading.text.lower():
        return []
    text = reading.text
    if re.search(r"^\s*table \w+ \S+ \{", text, re.M):
        chains = nft_ruleset(text)
    elif re.search(r"^Chain \S+ \(", text, re.M):
        chains = iptables_list(text)
    else:
        chains = iptables_save(text)
    if not chains:
        if not text.strip() and "nft" in (reading.command or ""):
            return [PacketFilter()]
        raise UnusableOutput("no chain of a packet filter in the text")
    return [PacketFilter(chains=chains)]


_UFW_RULE = re.compile(
    r"^(?:\[\s*\d+\]\s*)?(?P<to>\S.*?)\s{2,}"
    r"(?P<action>(?:ALLOW|DENY|REJECT|LIMIT)(?: (?:IN|OUT|FWD))?)\s{2,}"
    r"(?P<source>\S.*?)\s*$",
    re.MULTILINE,
)


def _ufw(reading: Reading) -> list[Fact]:
    if is_absent(reading):
        return []
    status = re.search(r"^\s*(?:Status|Zustand|État|Estado)\s*:\s*(\w+)", reading.text, re.M)
    if status is None:
        raise UnusableOutput("no status of ufw in the text")
    default = re.search(r"(\w+) \((?:incoming|eingehend|entrant)\)", reading.text)
    return [
        Ufw(
            is_active=status[1].lower() in ("active", "aktiv", "actif", "activo"),
            default_incoming=default[1] if default else None,
            rules=tuple(
                UfwRule(to=row["to"], action=row["action"], source=row["source"])
                for row in _UFW_RULE.finditer(reading.text)
            ),
        )
    ]


_CONNECTION = re.compile(
    r"(?<![0-9a-fA-F:.])\[?(?P<address>[0-9a-fA-F:.]{0,44}[0-9a-fA-F])(?:%[\w.-]{1,15})?\]?(?::|\s+(?:port\s+)?)(?P<port>\d{1,5})\s*[:=-]?>?\s+"
    r"(?P<result>ok|open|connected|succeeded|success|time[d-]?\s?out|timeout|refused|"
    r"connection refused|unreachable|no route to host|filtered|closed|blocked|failed)\b"
    r"(?:[^\d\n]*(?P<seconds>\d+(?:\.\d+)?)\s*(?P<unit>ms|s)?)?",
    re.IGNORECASE,
)


def _tried(text: str) -> Iterator[Connection]:
    for row in _CONNECTION.finditer(text):
        word = row["result"].lower()
        result: Literal["ok", "timeout", "refused", "unreachable"] = "timeout"
        if word in ("ok", "open", "connected", "succeeded", "success"):
            result = "ok"
        elif "refused" in word or word == "closed":
            result = "refused"
        elif "unreach" in word or "no route" in word:
            result = "unreachable"
        seconds = float(row["seconds"]) if row["seconds"] else None
        if seconds is not None and row["unit"] == "ms":
            seconds /= 1000
        yield Connection(
            address=row["address"], port=int(row["port"]), result=result, elapsed_s=seconds
        )


_NC = re.compile(
    r"(?:onnect(?:ion)? to )(?P<address>[0-9a-fA-F:.]+) (?:port )?(?P<port>\d+)(?: port)?"
    r".*?(?P<result>succeeded|timed out|refused|No route|unreachable)",
    re.IGNORECASE,
)


def _netcat(reading: Reading) -> list[Fact]:
    """``nc -zv ADDRESS PORT``: ``Connection to ... succeeded!`` or why not."""
    if is_absent(reading) and not _NC.search(reading.text):
        return []
    lines = (f"{m['address']}:{m['port']} {m['result']}" for m in _NC.finditer(reading.text))
    tried = tuple(_tried("\n".join(lines).replace("No route", "no route to host")))
    if not tried:
        raise UnusableOutput("no connection of nc in the text")
    return [Connections(tried=tried)]


def _connections(reading: Reading) -> list[Fact]:
    tried = tuple(_tried(reading.text))
    if not tried:
        raise UnusableOutput("no line ADDRESS:PORT RESULT in the text")
    arrow = re.search(r"(?:->|→|\bto\b)\s*([\w.-]+)", f"{reading.note} {reading.what}")
    return [Connections(tried=tried, target=arrow[1] if arrow else None)]


def _client(reading: Reading) -> list[Fact]:
    tried = tuple(_tried(reading.text))
    if not tried:
        raise UnusableOutput("no line ADDRESS:PORT RESULT in the text")
    return [ClientConnections(tried=tried)]


_PING_HEAD = re.compile(r"^PING \S+?(?: \(([0-9a-fA-F.:]+)\))?(?: from \S+ \S+?)?:? (\d+)\(", re.M)
_PING_SUM = re.compile(r"(\d+) packets transmitted, (\d+) (?:packets )?received")


def _ping(reading: Reading) -> list[Fact]:
    """One or several outputs of ``ping``, one behind the other."""
    found = []
    for part in re.split(r"(?m)^(?=PING )", reading.text):
        head, total = _PING_HEAD.search(part), _PING_SUM.search(part)
        if head is None or total is None:
            continue
        address = head[1] or part.split()[1]
        too_long = re.search(r"(?i)message too long|Frag(?:mentation)? needed", part)
        found.append(
            Echo(
                address=address.strip("()"),
                sent=int(total[1]),
                received=int(total[2]),
                payload_bytes=int(head[2]),
                too_long=too_long is not None,
            )
        )
    if not found and "no peers" in reading.text:
        return []
    if not found:
        raise UnusableOutput("no summary of a ping in the text")
    return [Echoes(echoes=tuple(found))]


READERS: tuple[Reader, ...] = (
    Reader(
        "firewall.forward", (Forwarding,), _ip_forward,
        commands=wherever(
            r"sysctl (?:-\S+ )*(?:net[./]ipv4[./])ip_forward",
            r"cat /proc/sys/net/ipv4/ip_forward",
        ),
        paths=(r"/proc/sys/net/ipv4/ip_forward",),
    ),
    Reader(
        "firewall.rules", (PacketFilter,), _filter,
        commands=wherever(r"(?:iptables(?:-save|-nft|-legacy)?)\b.*", r"nft .*list .*"),
        whats=(r"packet filter",),
    ),
    Reader("firewall.ufw", (Ufw,), _ufw, commands=wherever(r"ufw status\b.*",)),
    Reader(
        "firewall.probe", (Connections,), _connections,
        whats=(
            r"(?:tcp )?connect(?:ion)? (?:probes?|checks?)\b(?!.*port 22).*",
            r"(?:port|firewall) probes?\b.*",
        ),
    ),
    Reader("firewall.netcat", (Connections,), _netcat, commands=wherever(r"nc(?:at)? .*")),
    Reader(
        "firewall.client", (ClientConnections,), _client,
        whats=(r"(?:tcp )?connect(?:ion)? (?:timings?|times)\b.*",),
    ),
    Reader(
        "firewall.ping", (Echoes,), _ping,
        commands=wherever(r"ping\b.*",), whats=(r"(?:peer|fabric|jumbo) pings?\b.*",),
    ),
)  # fmt: skip


def _script_filter(_: Context) -> str:
    """Listing needs root: ``sudo -n`` where it can be had, else the refusal is the answer."""
    return """\
command -v iptables >/dev/null 2>&1 || { echo "iptables: command not found"; exit 0; }
iptables -w 2 -S 2>/dev/null || sudo -n iptables -w 2 -S 2>&1 || \
  echo "iptables: Permission denied (you must be root)"
"""


def _script_ufw(_: Context) -> str:
    return """\
command -v ufw >/dev/null 2>&1 || { echo "ufw: command not found"; exit 0; }
ufw status verbose 2>/dev/null || sudo -n ufw status verbose 2>/dev/null || {
  if grep -qs '^ENABLED=no' /etc/ufw/ufw.conf; then echo "Status: inactive"
  else echo "only root may ask ufw"; fi; }
"""


def _script_pings(context: Context) -> str:
    """Small echoes to management peers, and echoes as long as the interface allows on the fabric.

    All at once, so that an unreachable peer costs two seconds and not two seconds each.
    """
    peers = " ".join(shlex.quote(peer) for peer in context.peers)
    fabric = " ".join(shlex.quote(peer) for peer in context.fabric_peers)
    return f"""\
command -v ping >/dev/null 2>&1 || {{ echo "ping: command not found"; exit 0; }}
n=0
# Each answer is written in one piece, so that they do not mix.
echoes() {{ out=$(ping -n "$@" 2>&1); printf '%s\\n' "$out"; }}
for p in {peers}; do
  n=$((n+1)); echoes -c 1 -W 2 "$p" &
done
for p in {fabric}; do
  n=$((n+1))
  dev=$(ip -4 route get "$p" 2>/dev/null | sed -n 's/.* dev \\([^ ]*\\).*/\\1/p' | head -n 1)
  mtu=$(cat "/sys/class/net/$dev/mtu" 2>/dev/null) || mtu=1500
  [ "$mtu" -gt 9000 ] && mtu=9000
  echoes -c 4 -i 0.2 -W 2 -M do -s $((mtu-28)) "$p" &
done
wait
[ "$n" = 0 ] && echo "no peers"
:
"""


ASKS: tuple[Ask, ...] = (
    Ask(
        "firewall.forward",
        lambda _: "cat /proc/sys/net/ipv4/ip_forward",
        command="sysctl -n net.ipv4.ip_forward",
    ),
    Ask("firewall.rules", _script_filter, command="iptables -S"),
    Ask("firewall.ufw", _script_ufw, command="ufw status verbose"),
    Ask("firewall.pings", _script_pings, what="peer pings"),
)
