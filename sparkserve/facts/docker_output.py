"""Docker's command lines and the shapes of its answers: templates, tables and JSON.

Everything becomes partial documents in the form of ``docker inspect``, so that facts are made from
one form whatever command a user ran. Nothing here knows what the values mean.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from typing import Any

from sparkserve.facts.probe import UnusableOutput

Document = dict[str, Any]

_VALUED = {
    "-f", "--format", "--filter", "--type", "-n", "--last", "--entrypoint", "-v", "--volume",
    "-e", "--env", "-u", "--user", "-w", "--workdir", "--gpus", "--runtime", "--name", "--network",
    "--ulimit", "--mount", "--device", "--platform", "-H", "--host", "-c", "--context",
    "--tail", "--since", "--until",
}  # fmt: skip
_GROUPS = {"container", "image", "volume", "system"}
_WIDE = {
    "Status", "Ports", "Labels", "Mounts", "Command", "CreatedAt", "RunningFor", "Error", "Args",
    "Cmd", "Size", "Runtimes",
}  # fmt: skip
"""Fields whose values may hold blanks."""
_FIELD = re.compile(
    r"\{\{-?\s*(?:(json|println|print|lower|upper)\s+)?\(?\.([A-Za-z_][\w.]*)\)?\s*-?\}\}"
)
_INDEX = re.compile(r"\{\{-?\s*index\s+\.([A-Za-z_][\w.]*)\s+\"([^\"]+)\"\s*-?\}\}")
_RANGE = re.compile(
    r"\s*\{\{-?\s*range\s+(?P<pair>\$\w+\s*,\s*\$\w+\s*:=\s*)?\.(?P<path>[\w.]+)\s*-?\}\}"
    r"(?P<each>.*)\{\{-?\s*end\s*-?\}\}\s*"
)


@dataclass(frozen=True)
class Call:
    """One docker command line, understood."""

    verb: str
    """``ps``, ``inspect``, ``image inspect``, ``volume inspect``, ``info`` ..."""
    template: str | None
    names: tuple[str, ...]
    """Arguments after the options, such as names of containers or an image with its command."""
    options: tuple[str, ...]
    filtered: bool
    """Whether ``| grep`` or a filter may have dropped lines."""
    path: tuple[str, ...] = ()
    """Keys that a ``jq`` behind it took, outermost first."""


def parse_call(command: str) -> Call:
    """Understand a command line that begins with docker, options in any order.

    Raises:
        UnusableOutput: it is no docker command line.
    """
    line, _, behind = command.partition(" | ") if "{{" not in command else _pipe(command)
    line = re.sub(r"\$\([^)]*\)|`[^`]*`|\d?>\S*(?:\s*/dev/null)?|2>&1", " ", line)
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    while words and not re.fullmatch(r"(?:\S*/)?docker", words[0]):
        words.pop(0)
    if not words:
        raise UnusableOutput(f"no docker command: {command[:80]}")
    template: str | None = None
    options: list[str] = []
    names: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        name, equals, value = word.partition("=")
        if word in _VALUED:
            value, equals = next(rest, ""), "="
        if name in ("-f", "--format") and equals:
            template = value
        elif word.startswith("-") and len(word) > 1 and len(names) < 2 + _is_image_run(names):
            options.append(word if not equals or word != name else f"{name}={value}")
        else:
            names.append(word)
    verb = names.pop(0) if names else ""
    if verb in _GROUPS and names:
        verb = f"{verb} {names.pop(0)}"
    verb = {"container ls": "ps", "container ps": "ps", "container list": "ps",
            "container inspect": "inspect", "system info": "info", "image ls": "images",
            "container exec": "exec", "container run": "run"}.get(verb, verb)  # fmt: skip
    filtered = "grep" in behind or any(re.match(r"--filter|-f=", o) for o in options)
    keys = re.search(r"\bjq\b[^.]*'?(\.[\w.\[\]]*)", behind)
    path = tuple(re.findall(r"[A-Za-z_]\w*", keys[1])) if keys else ()
    return Call(verb, template, tuple(names), tuple(options), filtered, path)


def _is_image_run(names: list[str]) -> int:
    # `docker run IMAGE python3 -m x --help`: options behind the image belong to its program.
    return 0 if names[:1] in (["run"], ["exec"]) else 99


def _pipe(command: str) -> tuple[str, str, str]:
    # A template may hold pipes itself; a shell's pipe stands outside its quotes.
    quote, position = "", 0
    for position, sign in enumerate(command):
        if sign in "'\"" and quote in ("", sign):
            quote = "" if quote else sign
        elif sign == "|" and not quote:
            return command[:position], "|", command[position + 1 :]
    return command, "", ""


def documents(call: Call, text: str) -> list[Document]:
    """The answer as partial inspect documents, one per object.

    Raises:
        UnusableOutput: the text has not the form that the command line asks for.
    """
    template = (call.template or "").strip()
    if template in ("", "json", "{{json .}}"):
        if call.filtered and not call.template and not call.path:
            return [_scraped(text)]
        return [_under(call.path, one) for one in _loads_all(text)]
    if ranged := _RANGE.fullmatch(template):
        return [_ranged(ranged, text)]
    lines = [line for line in text.splitlines() if line.strip()]
    if template.startswith("table "):
        template, lines = template.removeprefix("table "), lines[1:]
    fit = _Template(template)
    found = [one for line in lines if (one := fit.document(line)) is not None]
    if lines and not found:
        # A template with line breaks, or JSON over several lines.
        whole = fit.document(" ".join(text.split()))
        if whole is None:
            raise UnusableOutput(f"the text does not fit the template {template}")
        found = [whole]
    return found


def table_rows(text: str) -> list[dict[str, str]]:
    """Rows of docker's own table, as ``docker ps`` and ``docker images`` print it.

    Raises:
        UnusableOutput: there is no header line.
    """
    lines = [line.expandtabs() for line in text.splitlines() if line.strip()]
    if not lines or not re.match(r"[A-Z][A-Z ]+(?:  |$)", lines[0]):
        raise UnusableOutput("no header line of docker's table")
    columns = [(m.start(), m[0]) for m in re.finditer(r"[A-Z]+(?: [A-Z]+)*", lines[0])]
    ends = [*(start for start, _ in columns[1:]), None]
    return [
        {name: line[start:end].strip() for (start, name), end in zip(columns, ends, strict=True)}
        for line in lines[1:]
    ]


def _loads_all(text: str) -> list[Any]:
    """One JSON document, a list of them, or one per line."""
    try:
        whole = json.loads(text)
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            return [json.loads(line) for line in lines]
        except ValueError:
            raise UnusableOutput("no JSON document") from None
    return whole if isinstance(whole, list) else [whole]


_SCRAPED = {
    "RestartCount": ("RestartCount",), "Architecture": ("Architecture",), "Os": ("Os",),
    "Status": ("State", "Status"), "ExitCode": ("State", "ExitCode"), "Id": ("Id",),
    "OOMKilled": ("State", "OOMKilled"), "Image": ("Config", "Image"),
    "MaximumRetryCount": ("HostConfig", "RestartPolicy", "MaximumRetryCount"),
}  # fmt: skip


def _scraped(text: str) -> Document:
    """What lines of a JSON document tell that came through ``grep``."""
    document: Document = {}
    for key, raw in re.findall(r'"(\w+)":\s*("[^"]*"|-?\d{1,18}\b|true|false)', text):
        if key in _SCRAPED:
            _put(document, _SCRAPED[key], json.loads(raw))
    if policy := re.search(r'"RestartPolicy":\s*\{\s*"Name":\s*"([^"]*)"', text):
        _put(document, ("HostConfig", "RestartPolicy", "Name"), policy[1])
    if not document:
        raise UnusableOutput("no line of a JSON document that is understood")
    return document


def _under(path: tuple[str, ...], value: Any) -> Document:
    for key in reversed(path):
        value = {key: value}
    if not isinstance(value, dict):
        raise UnusableOutput("expected a JSON object")
    return value


def _ranged(ranged: re.Match[str], text: str) -> Document:
    """What ``{{range .Mounts}}...{{end}}`` printed, as the list or the map that it went through."""
    document: Document = {}
    path = tuple(ranged["path"].split("."))
    if ranged["pair"]:
        pairs = [line.partition("=") for line in text.splitlines() if "=" in line]
        _put(document, path, {key.strip(): value.strip() for key, _, value in pairs})
        return document
    each = _Template(ranged["each"])
    found = [each.filled(match) for match in re.finditer(each.pattern + r"(?=\s|$)", text)]
    if text.strip() and not found:
        raise UnusableOutput(f"the text does not fit the template {ranged['each']}")
    _put(document, path, found)
    return document


class _Template:
    """A Go template of fields and plain text, as a regular expression."""

    def __init__(self, template: str) -> None:
        self.paths: list[tuple[str, ...]] = []
        self.json: list[bool] = []
        parts = re.split(r"(\{\{.*?\}\})", re.sub(r"\\[tn]", " ", template).strip())
        self.pattern = "".join(
            self._field(part) if part.startswith("{{") else _literal(part) for part in parts
        )

    def document(self, line: str) -> Document | None:
        """Values of one printed line; None where it does not fit."""
        match = re.fullmatch(self.pattern, line.strip())
        return None if match is None else self.filled(match)

    def filled(self, match: re.Match[str]) -> Document:
        """Values of one match."""
        document: Document = {}
        for path, is_json, raw in zip(self.paths, self.json, match.groups(), strict=True):
            _put(document, path, _value(raw, is_json=is_json))
        return document

    def _field(self, part: str) -> str:
        if re.fullmatch(r"\{\{-?\s*(?:println|\"[^\"]*\")\s*-?\}\}", part):
            return r"\s*"
        if index := _INDEX.fullmatch(part):
            self.paths.append((*index[1].split("."), index[2]))
            self.json.append(False)
            return "(.*?)"
        field = _FIELD.fullmatch(part)
        if field is None:
            raise UnusableOutput(f"template {part} is not understood")
        self.paths.append(tuple(field[2].split(".")))
        self.json.append(field[1] == "json")
        if field[1] == "json":
            return "(.*)"
        # A row's Status is a sentence; a State's is one word.
        wide = self.paths[-1][-1] in _WIDE and self.paths[-1] != ("State", "Status")
        return "(.*?)" if wide else r"(\S*?)"


def _literal(text: str) -> str:
    return r"\s+".join(re.escape(word) for word in re.split(r"\s+", text))


def _value(raw: str, *, is_json: bool) -> Any:
    if not is_json:
        return None if raw in ("<no value>", "<nil>") else raw
    try:
        return json.loads(raw)
    except ValueError:
        raise UnusableOutput(f"no JSON: {raw[:80]}") from None


def _put(document: Document, path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        document = document.setdefault(key, {})
        if not isinstance(document, dict):
            raise UnusableOutput(f"the template asks for {key} in two shapes")
    document[path[-1]] = value
