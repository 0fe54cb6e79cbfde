"""Where profiles lie: the user's folder, the built-in ones, or a file named by its path."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import sparkserve
from sparkserve.errors import ConfigError
from sparkserve.paths import config_dir

_SUFFIX = ".toml"


@dataclass(frozen=True)
class ProfileSource:
    """One profile file."""

    name: str
    """File name without ``.toml``."""
    path: Path
    kind: Literal["user", "built-in", "file"]
    hides: Path | None = None
    """The built-in profile of the same name that this user profile replaces."""

    @property
    def origin(self) -> str:
        """How values of this file are attributed: ``profile dsv41-tp4.toml``."""
        if self.kind == "file":
            return f"profile {self.path}"
        return f"{'user ' if self.kind == 'user' else ''}profile {self.path.name}"

    @property
    def note(self) -> str | None:
        """What the user should be told about the choice of this file; None = nothing."""
        if self.hides is None:
            return None
        return f"profile {self.name}: {self.path} is used instead of the built-in one"


def user_dir() -> Path:
    """The user's own profiles, ``$XDG_CONFIG_HOME/sparkserve/profiles``."""
    return config_dir() / "profiles"


def builtin_dir() -> Path:
    """Profiles that came with sparkserve: inside the package, or beside it in a checkout."""
    package = Path(sparkserve.__file__).parent
    packaged = package / "_profiles"
    return packaged if packaged.is_dir() else package.parent / "profiles"


def names() -> tuple[str, ...]:
    """Names that ``find`` knows, sorted; a name that both folders have stands once."""
    return tuple(sorted({*_stems(user_dir()), *_stems(builtin_dir())}))


def find(name_or_path: str) -> ProfileSource:
    """Look a profile up; something with a ``/`` or that ends in ``.toml`` is a path.

    Raises:
        ConfigError: nothing of that name; the message has the nearest match and the list.
    """
    if "/" in name_or_path or name_or_path.endswith(_SUFFIX):
        path = Path(name_or_path).expanduser()
        if not path.is_file():
            raise ConfigError(f"no profile file {path}", hint="sparkserve profile list")
        return ProfileSource(path.stem, path, "file")
    mine, builtin = (folder / f"{name_or_path}{_SUFFIX}" for folder in (user_dir(), builtin_dir()))
    if mine.is_file():
        return ProfileSource(name_or_path, mine, "user", builtin if builtin.is_file() else None)
    if builtin.is_file():
        return ProfileSource(name_or_path, builtin, "built-in")
    known = names()
    near = difflib.get_close_matches(name_or_path, known, n=1)
    guess = f" (did you mean {near[0]}?)" if near else ""
    raise ConfigError(
        f"no profile {name_or_path!r}{guess}; there are: {', '.join(known) or 'none'}",
        hint="sparkserve profile list",
    )


def base_of(source: ProfileSource, extends: str) -> ProfileSource:
    """The profile that a file extends.

    A user profile that extends its own name means the built-in one of that name; a path is
    relative to the file that names it.

    Raises:
        ConfigError: there is no such profile.
    """
    if extends == source.name and source.hides is not None:
        return ProfileSource(extends, source.hides, "built-in")
    if extends.endswith(_SUFFIX):
        return find(str(source.path.parent / Path(extends).expanduser()))
    return find(extends)


def _stems(folder: Path) -> tuple[str, ...]:
    if not folder.is_dir():
        return ()
    return tuple(path.stem for path in folder.glob(f"*{_SUFFIX}") if path.is_file())
