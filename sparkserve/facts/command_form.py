"""How commands are wrapped when people run them: by sudo, over SSH, in a container."""

from __future__ import annotations

import re

RUN = (
    r"(?:(?:sudo|doas)(?: -\w+)* |ssh (?:-[oipljFJ] ?\S+ |-[46AaCfGgKkMNnqTtVvXxYy]+ )*[\w.@:-]+ "
    r"|watch (?:-\w+ ?[\d.]* )*|bash -l?c |sh -c )*['\"]?"
)
"""Regular expression for what may stand before a program that is read here."""
END = r"['\"]?(?: ?2>\S+)?(?: ?\|\| ?true)?"
"""What may stand behind the whole command."""
READ = r"(?:cat|[ef]?grep|rg|head|tail|sed|awk|less|more|cut|tr)"
"""Programs that print a file, or part of it."""


def parts_of(command: str) -> list[str]:
    """The commands of a line that runs several, one after the other; quotes are not looked at."""
    bare = re.sub(rf"^{RUN}", "", command.strip())
    return [
        part.strip(" '\"") for part in re.split(r"\s*(?:;|&&|\n)\s*", bare) if part.strip(" '\"")
    ]
