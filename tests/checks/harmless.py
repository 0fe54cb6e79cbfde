"""Changes of a scene's texts that change nothing of what is wrong with it.

Everything is changed alike in all texts of the scene, their labels, commands and places, as
another user with another fleet would paste them.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable

from sparkserve.model.reading import Reading

Scene = tuple[Reading, ...]
Change = Callable[[Scene, random.Random], Scene]


def everywhere(scene: Scene, change: Callable[[str], str]) -> Scene:
    """One change of texts in every part of every reading."""
    parts = ("text", "label", "node", "command", "path", "what", "note")
    return tuple(
        reading.model_copy(update={p: change(v) for p in parts if (v := getattr(reading, p))})
        for reading in scene
    )


def texts(scene: Scene, change: Callable[[Reading], str]) -> Scene:
    """Another text for each reading."""
    return tuple(reading.model_copy(update={"text": change(reading)}) for reading in scene)


def _words(table: dict[str, str]) -> Callable[[str], str]:
    pattern = re.compile("|".join(rf"(?<![\w.]){re.escape(key)}(?![\w])" for key in table))
    return lambda text: pattern.sub(lambda match: table[match[0]], text)


def other_numbered_names(scene: Scene, rng: random.Random) -> Scene:
    """Nodes under another word and the same number, so that ranks stay known."""
    word = rng.choice(("spark", "dgx", "gx", "gb", "spark-", "dgx0"))
    return everywhere(scene, _words({f"node{n}": f"{word}{n}" for n in range(1, 9)}))


def other_free_names(scene: Scene, rng: random.Random) -> Scene:
    """Nodes under names without numbers, where no other name means the same Spark."""
    if any(reading.node and not reading.node.startswith("node") for reading in scene):
        return scene
    names = ["anna", "berta", "carla", "dora", "emil-gpu", "fritz.lab", "gx10-7c1e", "h"]
    rng.shuffle(names)
    return everywhere(scene, _words({f"node{n + 1}": name for n, name in enumerate(names)}))


def other_addresses(scene: Scene, rng: random.Random) -> Scene:
    """Other networks and hardware addresses; GIDs hold the same IPv4 addresses in hex."""
    second, third = rng.randrange(20, 60), rng.randrange(1, 90)
    mac = f"{rng.randrange(0x1000, 0xEFFF):04x}"

    def change(text: str) -> str:
        text = text.replace("10.100.", f"10.{second}.").replace("0a64:", f"0a{second:02x}:")
        text = text.replace("192.168.50.", f"192.168.{third}.").replace("4ebb:47ff", f"{mac}:47ff")
        return text.replace("fd12:3456:789a::", "fd77:1:2::")

    return everywhere(scene, change)


def other_ids(scene: Scene, rng: random.Random) -> Scene:
    """Other processes, containers, requests, revisions and files."""
    one, pid = f"{rng.randrange(16**11, 16**12):012x}", rng.randrange(5000, 60000)
    table = {
        "9751845b00aa": one, "21951": str(pid), "4121": str(pid + 1), "2213": str(pid + 2),
        "3742074": str(pid + 3), "ab12": f"req-{pid}", "dba1be0a": one[:8], "1111aaaa": "7" + one,
        "2222bbbb": "8" + one, "9f2c1e77": one[4:], "812:945": "77:78", "555:771": "91:99",
    }  # fmt: skip
    return everywhere(scene, _words(table))


def other_ports(scene: Scene, rng: random.Random) -> Scene:
    shift = rng.randrange(1, 900)
    ports = (20000, 41873, 50655, 43012)
    return everywhere(scene, _words({str(port): str(port + shift) for port in ports}))


def other_times(scene: Scene, rng: random.Random) -> Scene:
    """Every clock another day and hour, the same distances."""
    hours = rng.randrange(1, 10)

    def later(match: re.Match[str]) -> str:
        return f"{match[1]}{(int(match[2]) + hours) % 24:02d}:{match[3]}"

    def change(text: str) -> str:
        text = text.replace("2026-09-14", "2027-02-17").replace("Aug 27", "Feb 18")
        text = re.sub(
            r"((?:\d{4}-\d\d-\d\d|[A-Z][a-z]{2} \d\d)[ T])(0\d|1[0-3]):(\d\d)", later, text
        )
        return re.sub(r"(?m)^\[ (\d{4}\.\d+)\]", r"[1\1]", text)

    return texts(scene, lambda reading: change(reading.text))


def windows_lines(scene: Scene, _: random.Random) -> Scene:
    return texts(scene, lambda reading: reading.text.replace("\n", "\r\n"))


def blanks(scene: Scene, rng: random.Random) -> Scene:
    """Blanks at the ends of lines and empty lines at the end of the text."""

    def change(reading: Reading) -> str:
        if not reading.text.strip():
            return reading.text
        rows = [row + rng.choice(("", " ", "  ", "\t")) for row in reading.text.split("\n")]
        return rng.choice(("", "\n")) * (reading.format != "text") + "\n".join(rows) + "\n\n"

    return texts(scene, change)


def mark_of_bytes(scene: Scene, _: random.Random) -> Scene:
    return texts(scene, lambda reading: "\ufeff" + reading.text if reading.text else "")


UNORDERED = (
    r"ibdev2netdev|ip -o.*|ip -4 route|ss .*|docker ps.*|docker inspect -f.*RestartPolicy.*|"
    r"grep .*/proc/meminfo|systemctl list-units.*|stat -c.*|ls|nvidia-smi --query-compute-apps.*"
)


def line_order(scene: Scene, rng: random.Random) -> Scene:
    """Lines in another order, where each stands for itself."""

    def change(reading: Reading) -> str:
        free = (
            reading.format == "env"
            or reading.path == "/proc/meminfo"
            or (reading.command is not None and re.fullmatch(UNORDERED, reading.command))
        )
        if not free:
            return reading.text
        rows = reading.text.rstrip("\n").split("\n")
        rng.shuffle(rows)
        return "\n".join(rows) + "\n"

    return texts(scene, change)


def json_form(scene: Scene, rng: random.Random) -> Scene:
    """JSON over several lines, its keys in another order."""

    def shuffled(value: object) -> object:
        if isinstance(value, dict):
            keys = list(value)
            rng.shuffle(keys)
            return {key: shuffled(value[key]) for key in keys}
        return [shuffled(one) for one in value] if isinstance(value, list) else value

    def change(reading: Reading) -> str:
        if reading.format != "json" or "{{" in (reading.command or ""):
            # A template of docker prints one line.
            return reading.text
        return json.dumps(shuffled(json.loads(reading.text)), indent=rng.choice((None, 1, 2, 4)))

    return texts(scene, change)


MORE: tuple[tuple[str, str], ...] = (
    (r"ip -o -4 addr.*", "9: docker0    inet 172.17.0.1/16 scope global docker0"),
    (r"ip -o link.*", "9: docker0: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc noqueue "
     "state DOWN mode DEFAULT group default"),
    (r"ip -4 route", "172.17.0.0/16 dev docker0 proto kernel scope link src 172.17.0.1 linkdown"),
    (r"systemctl list-units.*", "ssh.service loaded active running OpenBSD Secure Shell server"),
    (r"dmesg", "[    0.000000] Booting Linux on physical CPU 0x0000000000 [0x410fd871]"),
    (r"journalctl -k", "Aug 26 00:00:01 spark1 kernel: usb 1-1: new high-speed USB device"),
    (r"/proc/meminfo|grep .*/proc/meminfo", "HugePages_Total:       0"),
    (r"ls", "README.md"),
)  # fmt: skip
LOG = "INFO 09-14 00:00:00 Loading the tokenizer of the model"


def more_lines(scene: Scene, _: random.Random) -> Scene:
    """Lines that have nothing to do with it, as whole outputs hold them."""

    def change(reading: Reading) -> str:
        text = (
            reading.text
            if reading.text.endswith("\n") or not reading.text
            else (reading.text + "\n")
        )
        source = reading.command or reading.path or ""
        added = next((line for regex, line in MORE if re.fullmatch(regex, source)), None)
        if added is not None:
            # A kernel's log begins with its boot; elsewhere the place does not matter.
            return f"{added}\n{text}"
        if reading.format == "env":
            return f"{text}LANG=C.UTF-8\nHOME=/root\n"
        if reading.format == "yaml":
            return f"# a comment\n{text}summary: lab\n"
        if reading.what == "engine log":
            return f"{LOG}\n{text}"
        return reading.text

    return texts(scene, change)


def other_interfaces(scene: Scene, rng: random.Random) -> Scene:
    """The other cage everywhere, and other Wi-Fi and management names."""
    if rng.random() < 0.5:
        return everywhere(scene, _words({"wlP9s9": "wlan0", "enP7s7": "eno1"}))
    table = {}
    for a, b in (("0", "1"), ("1", "0")):
        for name in (f"rocep1s0f{a}", f"roceP2p1s0f{a}"):
            table[name] = name[:-1] + b
        for name in (f"enp1s0f{a}np{a}", f"enP2p1s0f{a}np{a}"):
            table[name] = name[:-4] + f"{b}np{b}"
    return everywhere(scene, _words(table))


CHANGES: tuple[Change, ...] = (
    other_numbered_names, other_free_names, other_addresses, other_ids, other_ports, other_times,
    other_interfaces, line_order, json_form, more_lines, blanks, windows_lines, mark_of_bytes,
)  # fmt: skip
"""In the order in which several are made: the form of a file comes last."""
