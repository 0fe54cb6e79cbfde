"""Texts without what must not leave the house, so that judging them still says the same.

Secrets go. Names of people, their home folders, public addresses, MAC addresses and serial
numbers get other names, the same one wherever they stand: what was equal stays equal, what
differed still differs. Names of nodes and hosts, private addresses, versions and checksums stay.
Nothing can know every secret: look at a bundle before it is published.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence, Set

from sparkserve.model.reading import Reading
from sparkserve.ops.mask_secrets import without_secrets

_PLAIN_USERS = {
    "admin", "app", "build", "data", "dgx", "docker", "engine", "home", "llm", "model", "models",
    "nobody", "node", "nvidia", "ollama", "ray", "root", "sglang", "shared", "spark", "sparkserve",
    "ubuntu", "user", "vllm",
}  # fmt: skip
"""Accounts and folders that say nothing about a person; some are words that judges read."""

_SSH_COMMENT = re.compile(r"((?:ssh-\w+|ecdsa-sha2-\S+|sk-\S+) AAAA[\w+/=]+)[ \t]+([^\n\"']+)")
_HOME = re.compile(r"(?:/home|/Users)/([A-Za-z_][\w.-]*)")
_ID = re.compile(
    r"(?:\buid=\d+\(|\b(?:user|username|USER|LOGNAME)=|\"user\": ?\")([A-Za-z_][\w.-]*)"
)
_ACCOUNT = re.compile(r"(?m)^([a-z_][\w.-]*):[^:\n]*:[1-9]\d{3,8}:\d+:([^:\n]*)(?=:)")
_SSID = re.compile(r"(?i)(\bssid[\"']?[ \t]*[=:][ \t]*[\"']?|\bssid [\"'])([^\n\"']+)")
_MAIL = re.compile(
    r"\b[\w.+-]+@(?:[\w-]+\.)+(?!service|socket|target|timer|slice|mount|device|scope|local|lan"
    r"|internal|home|arpa)[A-Za-z]{2,}\b"
)
_MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b(?!:)", re.IGNORECASE)
_IPV4 = re.compile(
    r"(?i)(?:(?:inet|via|src|from|to|peer|host\w*|addr\w*|ip|at|connect\w*|gateway|gw|nameserver"
    r"|server|ping)[\s:='\"\[(]{1,3}|[@/,])((?:\d{1,3}\.){3}\d{1,3})(?![\w.])"
    r"|(?<![\w.])((?:\d{1,3}\.){3}\d{1,3})(?=/\d{1,2}\b|:\d{2,5}\b| (?:dev|via|lladdr) )"
)
_IPV6 = re.compile(r"(?<![\w:.])[0-9a-f]{1,4}(?::[0-9a-f]{0,4}){2,7}(?![\w:])", re.IGNORECASE)
_RESOLVERS = {"1.1.1.1", "1.0.0.1", "8.8.8.8", "8.8.4.4", "9.9.9.9"}
"""Everybody's; the way to them is asked for by these very addresses."""
_SERIAL = re.compile(
    r"(?i)(\b(?:serial(?:[ _-]?(?:number|no))?|machine[ _-]?id|product_uuid|asset[ _-]?tag)"
    r"[\"']?[ \t]*[:=]?[ \t]*[\"']?)((?=[\w-]*\d)[\w-]{6,})"
)
_GPU = re.compile(r"(?<=GPU-)[0-9a-f]{8}-[0-9a-f-]{27}")


def mask(readings: Sequence[Reading]) -> tuple[Reading, ...]:
    """The same readings with other names; the same texts always get the same names."""
    texts = [text for reading in readings for text in _texts(reading)]
    # A node's own name stays, or the texts would speak of a node that is not there.
    rules = _rules(texts, {reading.node for reading in readings})
    masked = []
    for reading in readings:
        changes = {
            name: rules(getattr(reading, name))
            for name in ("text", "label", "command", "path", "note")
            if getattr(reading, name)
        }
        if reading.path and re.search(r"machine-id|product_uuid|serial", reading.path):
            changes["text"] = _like(reading.text)
        masked.append(reading.model_copy(update=changes))
    return tuple(masked)


def _texts(reading: Reading) -> Iterable[str]:
    return (reading.text, reading.command or "", reading.path or "", reading.label)


def _rules(texts: Sequence[str], nodes: Set[str | None]) -> Callable[[str], str]:
    """One function that renames everything that was seen in any of the texts."""
    users = [user for user in _users(texts) if user not in nodes]
    public = _public_v4(texts)
    words = {user: f"user{number}" for number, user in enumerate(users, 1)}
    words |= public
    # A long name goes before a short one that it begins with.
    listed = sorted(words, key=len, reverse=True)
    any_word = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, listed))})(?![\w-]|\.\w)")
    mapped = {_hex_v4(old): _hex_v4(new) for old, new in public.items()}

    def rename(text: str) -> str:
        text = without_secrets(text)
        text = _SSH_COMMENT.sub(r"\1 key-comment", text)
        text = _ACCOUNT.sub(lambda match: match[0][: len(match[0]) - len(match[2])], text)
        text = _SSID.sub(lambda match: match[1] + f"network-{_short(match[2])}", text)
        text = _MAIL.sub(lambda match: f"mail-{_short(match[0])}@example.invalid", text)
        text = _SERIAL.sub(lambda match: match[1] + _like(match[2]), text)
        text = _GPU.sub(lambda match: _like(match[0]), text)
        text = _MAC.sub(_other_mac, text)
        text = _HOME.sub(lambda m: m[0][: -len(m[1])] + words.get(m[1], m[1]), text)
        text = any_word.sub(lambda match: words[match[0]], text) if listed else text
        for old, new in mapped.items():
            text = re.sub(rf"(?i)(?<=ffff:){old}\b", new, text)
        return _IPV6.sub(_other_v6, text)

    return rename


def _users(texts: Sequence[str]) -> list[str]:
    """Names of people, in order of sight."""
    found = [
        name
        for text in texts
        for regex in (_HOME, _ID, _ACCOUNT)
        for match in regex.finditer(text)
        for name in match.groups()[:1]
    ]
    return [n for n in dict.fromkeys(found) if n.lower() not in _PLAIN_USERS and len(n) > 2]


def _public_v4(texts: Sequence[str]) -> dict[str, str]:
    """Public addresses with their new ones; what shared a network of 24 bits still does.

    Only what stands where an address stands: a version of four numbers looks the same.
    """
    networks: dict[str, str] = {}
    renamed: dict[str, str] = {}
    for text in texts:
        for match in _IPV4.finditer(text):
            address = match[1] or match[2]
            try:
                is_public = ipaddress.IPv4Address(address).is_global
            except ValueError:
                continue
            if is_public and not address.startswith("0.") and address not in _RESOLVERS:
                network, _, last = address.rpartition(".")
                new = networks.setdefault(network, f"198.18.{len(networks) % 256}")
                renamed[address] = f"{new}.{last}"
    return renamed


def _hex_v4(address: str) -> str:
    """``c0a8:000b`` of 192.168.0.11, as in a GID."""
    a, b, c, d = (int(part) for part in address.split("."))
    return f"{a:02x}{b:02x}:{c:02x}{d:02x}"


def _other_v6(match: re.Match[str]) -> str:
    try:
        address = ipaddress.IPv6Address(match[0])
    except ValueError:
        return match[0]
    if not address.is_global or address.ipv4_mapped is not None:
        return match[0]
    digest = hashlib.sha256(address.packed).hexdigest()
    new = ipaddress.IPv6Address(f"2001:db8::{digest[:4]}:{digest[4:8]}")
    return new.exploded if match[0] == address.exploded else str(new)


def _other_mac(match: re.Match[str]) -> str:
    mac = match[0].lower()
    if int(mac[:2], 16) & 1 or set(mac) == {"0", ":"}:
        return match[0]
    digest = hashlib.sha256(mac.encode()).hexdigest()
    return ":".join([*match[0].split(":")[:3], digest[:2], digest[2:4], digest[4:6]])


def _like(value: str) -> str:
    """Another value of the same shape: digits stay digits, letters of hex stay such."""
    digest = hashlib.sha256(value.strip().encode()).hexdigest()
    hexes = iter(digest * (len(value) // len(digest) + 1))
    return "".join(character if not character.isalnum() else next(hexes) for character in value)


def _short(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()[:6]
