"""Environment variables of containers, images and rendered runs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self

from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.model.reading import Reading

Origin = Literal["container", "rendered", "runtime", "image"]
"""``container``: of a container that exists; ``rendered``: of a run that would be started;
``runtime``: of a process, or not said of what; ``image``: baked into an image."""
_STRENGTH: tuple[Origin, ...] = ("container", "rendered", "runtime", "image")
_ROW = re.compile(r"(?:export\s+|declare -x\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)


class Environment(Fact):
    """Variables of one place; a blank value is kept as a blank."""

    variables: dict[str, str]
    origin: Origin = "runtime"

    def merged(self, other: Self) -> Self:
        """Both together; of two values that of the origin nearest to the running process wins."""
        weak, strong = sorted((other, self), key=lambda one: -_STRENGTH.index(one.origin))
        return strong.model_copy(update={"variables": weak.variables | strong.variables})


def variables_in(text: str) -> dict[str, str]:
    """Variables in ``KEY=VALUE`` lines, ``-e KEY=VALUE`` words, a JSON list or a JSON table.

    Raises:
        UnusableOutput: there is none.
    """
    found = _from_json(text)
    if found is None:
        found = {}
        for line in re.split(r"[\n\0]", text):
            found |= _from_line(line.strip())
    if not found:
        raise UnusableOutput("no variable of the form KEY=VALUE")
    return found


def environment_of(rows: Sequence[str], origin: Origin) -> Environment:
    """The variables of a list as Docker keeps it: ``["PATH=/bin", ...]``."""
    pairs = (row.partition("=") for row in rows if _ROW.fullmatch(row))
    return Environment(variables={name: value for name, _, value in pairs}, origin=origin)


def _from_json(text: str) -> dict[str, str] | None:
    if not text.lstrip().startswith(("[", "{")):
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _from_data(data)


def _from_data(data: Any) -> dict[str, str] | None:
    """Variables of a list of rows, of a table of names, or of a whole ``docker inspect``."""
    if isinstance(data, list) and data and all(isinstance(one, str) for one in data):
        return dict(environment_of(data, "runtime").variables)
    if isinstance(data, list) and len(data) == 1 and isinstance(data[0], dict):
        return _from_data(data[0])
    if isinstance(data, dict):
        config = data.get("Config")
        rows = config.get("Env") if isinstance(config, dict) else data.get("Env")
        if rows is not None:
            return _from_data(rows)
        plain = (str, int, float)
        return {
            str(k): str(v) for k, v in data.items() if isinstance(v, plain) and k.isidentifier()
        }
    return None


def _from_line(line: str) -> dict[str, str]:
    if line.startswith("#"):
        return {}
    # A line of a JSON list, as `docker inspect | grep` leaves it.
    listed = re.fullmatch(r'"((?:[^"\\]|\\.)*)",?', line)
    found = _ROW.fullmatch(listed[1] if listed else line)
    if found is None:
        return _from_words(line)
    value = found[2]
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return {found[1]: value[1:-1] if quoted else value}


def _from_words(line: str) -> dict[str, str]:
    """``-e KEY=VALUE`` words of one command line; a name without a value is passed over."""
    if "-e" not in line:
        return {}
    try:
        words = shlex.split(line.rstrip("\\"))
    except ValueError:
        return {}
    found = {}
    for before, word in zip(["", *words], words, strict=False):
        told = re.fullmatch(r"(?:--env=)?([A-Za-z_]\w*)=(.*)", word, re.DOTALL)
        if told and (before in ("-e", "--env") or word.startswith("--env=")):
            found[told[1]] = told[2]
    return found


def _reader(
    reader_id: str,
    origin: Origin,
    *,
    commands: tuple[str, ...] = (),
    paths: tuple[str, ...] = (),
    whats: tuple[str, ...] = (),
) -> Reader:
    def parse(reading: Reading) -> Iterable[Fact]:
        if reading.rc not in (None, 0):
            raise UnusableOutput(f"exit status {reading.rc}")
        yield Environment(variables=variables_in(reading.text), origin=origin)

    return Reader(reader_id, (Environment,), parse, commands, paths, whats)


_ENV_TEMPLATE = r".*\{\{.*\.Config\.Env\b.*\}\}.*"
READERS: tuple[Reader, ...] = (
    _reader(
        "environment.image",
        "image",
        commands=(
            rf"(?:docker|podman) (?:image inspect|inspect --type[ =]image)\b{_ENV_TEMPLATE}",
            r"(?:docker|podman) run\b.*--entrypoint[ =](?:\S*/)?(?:env|printenv)\b.*",
        ),
        whats=(r"(?:baked )?(?:image|baked)(?:'s)? (?:env|environment|variables)",),
    ),
    _reader(
        "environment.container",
        "container",
        commands=(
            rf"(?:docker|podman|nerdctl) (?:container )?inspect\b{_ENV_TEMPLATE}",
            r"(?:docker|podman|nerdctl) (?:container )?inspect\b[^{]*\| ?(?:grep|rg|jq)\b.*"
            r"(?:Env|NCCL|GLOO|SGLANG|IFNAME|_IP).*",
            r"(?:docker|podman|nerdctl) exec\b.*[ '\"/](?:env|printenv)(?: ?\|.*)?[\"']?",
        ),
        whats=(
            r"(?:running )?container(?:'s)? (?:env|environment|variables)",
            r"(?:docker )?env(?:ironment)?(?: variables)? of (?:the |a )?(?:running )?"
            r"(?:container|rank|engine)\b.*",
            r"docker env(?:ironment)?",
        ),
    ),
    _reader(
        "environment.rendered",
        "rendered",
        whats=(
            r"rendered (?:container |docker |engine )?(?:env|environment|variables)",
            r"rendered (?:-e|--env) (?:list|flags|options)",
            r"(?:docker run )?(?:-e|--env) (?:list|flags|options)",
            r"(?:launch|engine|rank) (?:env|environment|variables)",
        ),
    ),
    _reader(
        "environment.runtime",
        "runtime",
        commands=(r"(?:env|printenv)(?: ?\|.*)?", r".*/proc/\d+/environ\b.*"),
        paths=(r"/proc/(?:\d+|self|<pid>)/environ",),
        whats=(r"(?:runtime|process|engine process) (?:env|environment|variables)", r"env"),
    ),
)
ASKS: tuple[Ask, ...] = ()
