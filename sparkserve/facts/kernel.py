"""Versions of the host: kernel, its command line, driver, firmware, the machine itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce

from sparkserve.facts.command_form import END, READ, RUN
from sparkserve.facts.keyed import parse_keyed
from sparkserve.facts.probe import Context, UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.model.reading import Reading


class HostVersions(Fact):
    """What a node says about its own software and firmware; None = not said."""

    kernel: str | None = None
    """As ``uname -r`` prints it."""
    cmdline: str | None = None
    """``/proc/cmdline``."""
    architecture: str | None = None
    """As ``uname -m`` prints it."""
    driver_module: str | None = None
    """Version of the loaded NVIDIA kernel module."""
    driver_userland: str | None = None
    """Version of the driver's libraries, as ``nvidia-smi`` names it."""
    nic_firmware: dict[str, str] | None = None
    """ConnectX firmware by RDMA device; the key ``""`` where no device was named."""
    bios: str | None = None
    dgx_os: str | None = None
    docker: str | None = None
    product: str | None = None
    """DMI product name."""
    page_bytes: int | None = None
    """``getconf PAGESIZE``."""
    boot_id: str | None = None
    """The kernel's own name of this boot."""
    uptime_s: float | None = None


VERSIONS = ("kernel", "driver_module", "driver_userland", "bios", "dgx_os", "docker")
"""Versions that a routine update moves, as fields of HostVersions."""


def versions_of(versions: HostVersions) -> dict[str, str]:
    """Versions that a routine update moves, by name; unknown ones are left out."""
    found = {name: getattr(versions, name) for name in VERSIONS}
    if versions.nic_firmware:
        found["nic_firmware"] = ", ".join(sorted(set(versions.nic_firmware.values())))
    return {name: value for name, value in found.items() if value is not None}


_RELEASE = re.compile(r"\d+\.\d+\.\d+(?:[-+]\S+)?")
_FIRMWARE = re.compile(
    r"(?:fw_ver\s*[:=]?\s*|firmware-version: )?(\d{2}\.\d{2}\.\d{4})(?: \(\S+\))?"
)
_NAMED_FIRMWARE = re.compile(
    r"(?:\S*/infiniband/)?([A-Za-z]\w+)(?:/fw_ver)?\s*[:=]\s*(\d{2}\.\d{2}\.\d{4})"
)
_MODULE = re.compile(r"NVRM version:.*?\s(\d{3}\.\d+(?:\.\d+)*)\b")
_DRIVER = re.compile(r"[3-9]\d{2}\.\d{2,3}(?:\.\d{2})?")
_CMDLINE = re.compile(r"(?:^|\s)(?:BOOT_IMAGE=|root=|console=)")
_ARCHITECTURE = re.compile(r"aarch64|arm64|x86_64|amd64")
_UNAME_A = re.compile(r"Linux \S+ (\d+\.\d+\.\d+\S*) .*")


def _by_shape(line: str) -> HostVersions | None:
    """One line of an answer to several commands; None where its shape says nothing."""
    if match := _MODULE.search(line):
        return HostVersions(driver_module=match[1])
    if match := _UNAME_A.fullmatch(line):
        machine = _ARCHITECTURE.search(line)
        return HostVersions(kernel=match[1], architecture=machine[0] if machine else None)
    if match := _NAMED_FIRMWARE.fullmatch(line):
        named = "" if match[1] == "fw_ver" else match[1]
        return HostVersions(nic_firmware={named: match[2]})
    if match := _FIRMWARE.fullmatch(line):
        return HostVersions(nic_firmware={"": match[1]})
    if _DRIVER.fullmatch(line):
        return HostVersions(driver_module=line)
    if _ARCHITECTURE.fullmatch(line):
        return HostVersions(architecture=line)
    if _CMDLINE.search(line):
        return HostVersions(cmdline=line)
    if match := _RELEASE.fullmatch(line):
        return HostVersions(kernel=match[0])
    return None


def _versions(reading: Reading) -> Iterator[HostVersions]:
    lines = [line.strip() for line in reading.text.splitlines() if line.strip()]
    found = [fact for line in lines if (fact := _by_shape(line)) is not None]
    if not found:
        raise UnusableOutput("no version of a kernel, driver or firmware in it")
    yield reduce(HostVersions.merged, found)


def _cmdline(reading: Reading) -> Iterator[HostVersions]:
    lines = [line.strip() for line in reading.text.splitlines() if line.strip()]
    if len(lines) != 1 or ("=" not in lines[0] and " " not in lines[0]):
        raise UnusableOutput("not one line of a kernel's arguments")
    yield HostVersions(cmdline=lines[0])


def _firmware_file(reading: Reading) -> Iterator[HostVersions]:
    device = re.search(r"/infiniband/([A-Za-z]\w*)/", reading.source)
    match = _FIRMWARE.fullmatch(reading.text.strip())
    if device and match:
        yield HostVersions(nic_firmware={device[1]: match[1]})
    else:
        yield from _versions(reading)


_DEVICE = re.compile(
    r"^(?:hca_id:\s*|CA ')(?P<device>\w+)|^\s*(?:fw_ver:|Firmware version:)\s*(?P<firmware>\S+)",
    re.MULTILINE,
)


def firmware_in(text: str) -> list[HostVersions]:
    """Firmware of each device in ``ibv_devinfo`` or ``ibstat``; nothing where none is told."""
    found: dict[str, str] = {}
    device = ""
    for match in _DEVICE.finditer(text):
        device = match["device"] or device
        if match["firmware"] and _FIRMWARE.fullmatch(match["firmware"]):
            found.setdefault(device, match["firmware"])
    return [HostVersions(nic_firmware=found)] if found else []


def _page_size(reading: Reading) -> Iterator[HostVersions]:
    text = reading.text.strip()
    if not re.fullmatch(r"[1-9]\d{2,6}", text):
        raise UnusableOutput("not the size of a page")
    yield HostVersions(page_bytes=int(text))


def _own(reading: Reading) -> Iterator[HostVersions]:
    """The answer of our own script, as ``key=value`` lines."""
    fields = parse_keyed(reading.text)
    values: dict[str, object] = {key: fields[key] for key in _PLAIN if fields.get(key)}
    page, up = fields.get("page_bytes", ""), fields.get("uptime_s", "")
    module = _MODULE.search("NVRM version: " + fields.get("nvrm", ""))
    firmware = dict(
        pair.split(":", 1)
        for pair in fields.get("fw", "").split()
        if _NAMED_FIRMWARE.fullmatch(pair)
    )
    if not values.get("kernel"):
        raise UnusableOutput("no kernel named")
    yield HostVersions.model_validate(
        values
        | {"page_bytes": int(page) if page.isdecimal() else None}
        | {"uptime_s": float(up) if re.fullmatch(r"\d{1,10}(?:\.\d+)?", up) else None}
        | {"driver_module": module[1] if module else None, "nic_firmware": firmware or None}
    )


_PLAIN = ("kernel", "cmdline", "architecture", "bios", "dgx_os", "docker", "product", "boot_id")


def _script(_: Context) -> str:
    return """\
echo "kernel=$(uname -r)"
echo "architecture=$(uname -m)"
echo "cmdline=$(cat /proc/cmdline)"
echo "page_bytes=$(getconf PAGESIZE)"
echo "boot_id=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"
echo "uptime_s=$(cut -d ' ' -f 1 /proc/uptime 2>/dev/null)"
echo "nvrm=$(sed -n 's/^NVRM version: *//p' /proc/driver/nvidia/version 2>/dev/null)"
fw=
for file in /sys/class/infiniband/*/fw_ver; do
  [ -r "$file" ] || continue
  device=${file%/fw_ver}
  fw="$fw ${device##*/}:$(cat "$file")"
done
echo "fw=$fw"
echo "product=$(cat /sys/class/dmi/id/product_name 2>/dev/null)"
echo "bios=$(cat /sys/class/dmi/id/bios_version 2>/dev/null)"
echo "dgx_os=$(sed -n 's/^DGX_SWBUILD_VERSION=//p' /etc/dgx-release 2>/dev/null | tr -d '"')"
docker version --format 'docker={{.Server.Version}}' 2>/dev/null || true
"""


_PART = (
    rf"(?:uname(?: -\w+)?|{READ} \S*/proc/cmdline|{READ} .*/proc/driver/nvidia/version"
    rf"|{READ} .*fw_ver\S*|{READ} \S*/sys/module/nvidia/version|hostname|echo(?: \S+)?)"
)


def _release(reading: Reading) -> Iterator[HostVersions]:
    """``/etc/dgx-release``, and what docker says of its own version."""
    text = reading.text
    build = re.search(r'(?m)^DGX_(?:SWBUILD|OTA)_VERSION="?([\w.-]+)', text)
    docker = re.search(
        r"(?:Docker version |^\s*Version: +|^)(\d{2,}\.\d+\.\d+)\b", text, re.MULTILINE
    )
    if build is None and docker is None:
        raise UnusableOutput("no version in it")
    yield HostVersions(
        dgx_os=build[1] if build else None,
        docker=docker[1] if docker and build is None else None,
    )


FIRMWARE = Reader(
    "kernel.firmware", (HostVersions,), _firmware_file,
    commands=(rf"{RUN}{READ} .*/infiniband/\S*/fw_ver{END}",),
    paths=(r".*/infiniband/[^/]*/fw_ver",),
)  # fmt: skip
"""Stands before the reader of all other files of these folders."""
READERS: tuple[Reader, ...] = (
    Reader("kernel.own", (HostVersions,), _own, whats=(r"host versions",)),
    Reader(
        "kernel.cmdline", (HostVersions,), _cmdline,
        commands=(rf"{RUN}cat /proc/cmdline{END}",), paths=(r".*proc/cmdline",),
        whats=(r"(?:kernel )?cmdline|kernel command line",),
    ),
    Reader(
        "kernel.page_size", (HostVersions,), _page_size,
        commands=(rf"{RUN}getconf (?:PAGESIZE|PAGE_SIZE){END}",),
    ),
    Reader(
        "kernel.release", (HostVersions,), _release,
        commands=(
            rf"{RUN}{READ} .*/etc/dgx-release{END}",
            rf"{RUN}docker (?:version(?: .*)?|--version|-v){END}",
        ),
        paths=(r".*etc/dgx-release",),
    ),
    Reader(
        "kernel.versions", (HostVersions,), _versions,
        commands=(rf"{RUN}{_PART}(?: ?(?:;|&&|\|\|) ?{_PART})*{END}",),
        paths=(
            r".*proc/driver/nvidia/version", r".*proc/sys/kernel/osrelease",
            r".*sys/module/nvidia/version",
        ),
        whats=(
            r".*\buname -r\b.*", r".*\bNVRM version\b.*",
            r"(?!host versions$)(?:(?:kernel|driver|firmware|host)\b.*\b)?versions?\b.*",
            r"kernel release\b.*",
        ),
    ),
)  # fmt: skip
ASKS: tuple[Ask, ...] = (Ask("kernel.versions", _script, what="host versions"),)
