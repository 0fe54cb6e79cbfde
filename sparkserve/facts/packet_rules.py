"""Chains of a packet filter, from iptables or nft, reduced to what decides about forwarding."""

from __future__ import annotations

import re

from sparkserve.model.base import Model


class Rule(Model):
    """One rule: where packets come in and go out, and what becomes of them."""

    target: str
    """``ACCEPT``, ``DROP``, ``REJECT``, ``RETURN``, or a chain."""
    incoming: str | None = None
    """Interface, a trailing ``+`` stands for any rest; None = any."""
    outgoing: str | None = None
    source: str | None = None
    """Network that packets come from; None = any."""
    is_narrow: bool = False
    """Whether it asks for more: destinations, ports, states."""

    def covers(self, incoming: str, outgoing: str) -> bool:
        """Whether every packet of this way meets the rule."""
        return (
            not self.is_narrow
            and self.source is None
            and _covers(self.incoming, incoming)
            and _covers(self.outgoing, outgoing)
        )


class Chain(Model):
    """One chain; without policy it is a user's own."""

    name: str
    policy: str | None = None
    rules: tuple[Rule, ...] = ()


def _covers(pattern: str | None, name: str) -> bool:
    if pattern is None or pattern in ("*", "any"):
        return True
    if pattern[-1:] in "+*":
        return name.startswith(pattern[:-1])
    return pattern == name


def _build(policies: dict[str, str | None], rules: list[tuple[str, Rule]]) -> tuple[Chain, ...]:
    names = dict.fromkeys([*policies, *(chain for chain, _ in rules)])
    return tuple(
        Chain(
            name=name,
            policy=policies.get(name),
            rules=tuple(rule for chain, rule in rules if chain == name),
        )
        for name in names
    )


def iptables_save(text: str) -> tuple[Chain, ...]:
    """``iptables -S`` and ``iptables-save``: ``-P``, ``-N``, ``:CHAIN POLICY`` and ``-A`` lines.

    Only the filter table of a save counts.
    """
    policies: dict[str, str | None] = {}
    rules = []
    table = "filter"
    for line in text.splitlines():
        words = line.split()
        if line.startswith("*"):
            table = line[1:].strip()
        if table != "filter" or not words:
            continue
        if words[0] == "-P" and len(words) > 2:
            policies[words[1]] = words[2]
        elif words[0] == "-N" and len(words) > 1:
            policies.setdefault(words[1], None)
        elif re.match(r":\S+$", words[0]) and len(words) > 1:
            policies[words[0][1:]] = None if words[1] == "-" else words[1]
        elif words[0] == "-A" and len(words) > 2:
            rules.append((words[1], _save_rule(line)))
    return _build(policies, rules)


def _save_rule(line: str) -> Rule:
    rest = re.sub(r'-m comment --comment (?:"[^"]*"|\S+)', "", line)
    rest = re.sub(r"-c \d+ \d+", "", rest)
    words = rest.split()[2:]
    values: dict[str, str] = {}
    narrow = "!" in words
    place = 0
    while place < len(words):
        word = words[place]
        long = {"--jump": "-j", "--goto": "-j", "-g": "-j", "--in-interface": "-i",
                "--out-interface": "-o", "--source": "-s"}  # fmt: skip
        word = long.get(word, word)
        if word in ("-j", "-i", "-o", "-s") and place + 1 < len(words):
            values[word] = words[place + 1]
            place += 2
            continue
        narrow = narrow or (word.startswith("-") and "-j" not in values)
        place += 1
    return Rule(
        target=values.get("-j", ""),
        incoming=values.get("-i"),
        outgoing=values.get("-o"),
        source=values.get("-s"),
        is_narrow=narrow,
    )


def iptables_list(text: str) -> tuple[Chain, ...]:
    """``iptables -L -v [-n]``; without ``-v`` no interface is shown, so rules count as narrow."""
    policies: dict[str, str | None] = {}
    rules = []
    chain = ""
    for line in text.splitlines():
        words = line.split()
        if found := re.match(r"Chain (\S+) \((?:policy (\w+))?", line):
            chain = found[1]
            policies[chain] = found[2]
        elif len(words) >= 9 and re.match(r"\d+[KMGT]?$", words[0]):
            # pkts bytes target prot opt in out source destination ...
            if re.match(r"\d+[KMGT]?$", words[2]):
                words = words[1:]
            anywhere = {"0.0.0.0/0", "anywhere", "::/0"}
            free = words[3] in ("all", "0") and {words[7], words[8]} <= anywhere
            more = [word for word in words[9:] if not re.match(r"/\*.*\*/", word)]
            rules.append(
                (
                    chain,
                    Rule(
                        target=words[2],
                        incoming=_any(words[5]),
                        outgoing=_any(words[6]),
                        is_narrow=not free or bool(more),
                    ),
                )
            )
        elif len(words) >= 5 and words[0] != "target" and words[0] != "pkts":
            rules.append((chain, Rule(target=words[0], is_narrow=True)))
    return _build(policies, rules)


def _any(name: str) -> str | None:
    return None if name in ("*", "any") else name


_VERDICT = re.compile(r"\b(accept|drop|reject|return|(?:jump|goto) (\S+))\b")
_NFT_PLAIN = re.compile(
    r'\b[io]ifname "?[^\s"]+"?|\bcounter(?: packets \d+ bytes \d+)?|\bcomment "[^"]*"|\bxt \S+ \S+'
)


def nft_ruleset(text: str) -> tuple[Chain, ...]:
    """``nft list ruleset``; what is hooked into forwarding is called FORWARD, input INPUT."""
    policies: dict[str, str | None] = {}
    rules = []
    chain = ""
    for line in text.splitlines():
        if found := re.match(r"\s*chain (\S+) \{", line):
            chain = found[1]
            policies.setdefault(chain, None)
        elif found := re.search(r"type filter hook (forward|input)\b.*?policy (\w+)", line):
            hooked = found[1].upper()
            if chain != hooked:
                policies.pop(chain, None)
            chain = hooked
            # Of several hooked chains the strictest decides.
            if policies.get(chain) != "DROP":
                policies[chain] = found[2].upper()
        elif chain and (verdict := _VERDICT.search(line)):
            incoming = re.search(r'\biifname "?([^\s"]+)"?', line)
            outgoing = re.search(r'\boifname "?([^\s"]+)"?', line)
            rest = _NFT_PLAIN.sub("", line).replace(verdict[0], "").strip()
            rules.append(
                (
                    chain,
                    Rule(
                        target=verdict[2] or verdict[1].upper(),
                        incoming=incoming[1] if incoming else None,
                        outgoing=outgoing[1] if outgoing else None,
                        is_narrow=bool(rest),
                    ),
                )
            )
    return _build({k: v for k, v in policies.items() if k}, rules)
