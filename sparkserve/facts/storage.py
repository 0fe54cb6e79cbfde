"""Free space where a run and the packed Engram rows are written."""

from __future__ import annotations

import shlex

from sparkserve.facts.probe import Context, Probe, UnusableOutput
from sparkserve.model.base import Model

# `$p` = a path; its nearest existing parent is what can be asked.
_ASK = """\
while [ ! -e "$p" ] && [ "$p" != / ]; do p=$(dirname "$p"); done
if [ -w "$p" ]; then echo "writable yes $p"; else echo "writable no $p"; fi
df -Pk "$p"
"""


class SpaceFacts(Model):
    """The file system that holds (or would hold) a path."""

    path: str
    """Nearest existing parent of the path."""
    free_bytes: int
    total_bytes: int
    writable: bool


def _script_root(_: Context) -> str:
    return f"p=$ROOT\n{_ASK}"


def _script_engram(context: Context) -> str:
    directory = shlex.quote(context.engram_dir or "")
    return f'p={directory}\ncase "$p" in /*) ;; *) p="$ROOT/engram/$p" ;; esac\n{_ASK}'


def _parse(text: str) -> SpaceFacts:
    lines = text.strip().splitlines()
    head = lines[0].split(maxsplit=2) if lines else []
    if len(head) != 3 or head[0] != "writable":
        raise UnusableOutput("no path line before df's table")
    for line in lines[1:]:
        words = line.split()
        # The device name may hold blanks; the figures stand in front of the percentage.
        place = next((i for i, word in enumerate(words) if word.endswith("%")), None)
        if place is not None and place >= 4 and words[place - 1].isdigit():
            return SpaceFacts(
                path=head[2],
                free_bytes=int(words[place - 1]) * 1024,
                total_bytes=int(words[place - 3]) * 1024,
                writable=head[1] == "yes",
            )
    raise UnusableOutput("no figures in df's table")


ROOT_SPACE = Probe("storage.root", SpaceFacts, _script_root, _parse)
ENGRAM_SPACE = Probe("storage.engram", SpaceFacts, _script_engram, _parse)
