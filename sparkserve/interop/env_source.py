"""The assignments of an env file with a book of what became of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparkserve.errors import ConfigError
from sparkserve.interop.dotenv import Setting

_UNKNOWN = "the importer does not know it"
# First match wins; the reasons say where the thing lives in sparkserve.
_REASONS_BY_PREFIX = (
    (("DSV41_", "SPARK_", "B12X_"), "adapters are chosen in the profile: [adapters.NAME]"),
    (("SGLANG_", "VLLM_", "PYTORCH_", "CUDA_", "FLASHINFER_", "TORCH_"),
     "sparkserve renders the engine's variables from the profile itself"),
    (("SKIP_", "SMOKE_", "WARMUP", "FORCE"), "checks are not skipped by variables"),
    (("NFS_", "HF_", "DOCKER_", "BUILD_"), "it belongs to preparing nodes, not to serving"),
    (("GLM", "MTP_"), "it belongs to another model"),
)  # fmt: skip
_SECRET_PARTS = ("PASS", "TOKEN", "SECRET", "CREDENTIAL")


class EnvSource:
    """Hands out values by key and remembers which were used; the last assignment holds."""

    def __init__(self, settings: Sequence[Setting], where: str) -> None:
        self.where = where
        self.used: dict[str, str] = {}
        self._settings = {setting.key: setting for setting in settings}
        self._order = list(self._settings)
        self._dropped: dict[str, str] = {}
        self._repeated = [
            (setting.key, f"line {setting.line} is replaced by line {last.line}")
            for setting in settings
            if (last := self._settings[setting.key]) is not setting
        ]

    @property
    def names(self) -> tuple[str, ...]:
        """All keys in the file's order."""
        return tuple(self._settings)

    def require_known(self, keys: Iterable[str]) -> None:
        """Refuse to go on without the value of a key that the file sets in a shell's words.

        Raises:
            ConfigError: one of the keys needs a shell.
        """
        for key in keys:
            setting = self._settings.get(key)
            if setting is not None and setting.unresolved is not None:
                raise self.error(key, f"cannot be read: {setting.unresolved}")

    def peek(self, key: str) -> str | None:
        """A value without using it; None where there is none, it is empty or unresolved."""
        setting = self._settings.get(key)
        return setting.value.strip() or None if setting is not None else None

    def take(self, key: str, goes_to: str) -> str | None:
        """Use a value; None where there is none, it is empty or unresolved."""
        value = self.peek(key)
        if value is not None:
            self.used[key] = goes_to
        return value

    def take_int(self, key: str, goes_to: str) -> int | None:
        """Use a whole number.

        Raises:
            ConfigError: it is none.
        """
        value = self.take(key, goes_to)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit()):
            raise self.error(key, f"= {value!r}, expected a whole number")
        return int(value)

    def take_float(self, key: str, goes_to: str) -> float | None:
        """Use a number.

        Raises:
            ConfigError: it is none.
        """
        value = self.take(key, goes_to)
        if value is None:
            return None
        try:
            return float(value)
        except ValueError:
            raise self.error(key, f"= {value!r}, expected a number") from None

    def drop(self, key: str, reason: str) -> None:
        """Report a key as not taken over; the first reason holds, and it was not used."""
        if key in self._settings:
            self.used.pop(key, None)
            self._dropped.setdefault(key, reason)

    def is_dropped(self, key: str) -> bool:
        """Whether a key was reported as not taken over."""
        return key in self._dropped

    def note(self, key: str, reason: str) -> None:
        """Report a part of a value, under a name of its own."""
        self._dropped.setdefault(key, reason)
        if key not in self._order:
            self._order.append(key)

    def error(self, key: str, problem: str) -> ConfigError:
        """An error about a key, with its line."""
        setting = self._settings.get(key)
        line = f" line {setting.line}" if setting is not None else ""
        return ConfigError(f"{self.where}{line}: {key} {problem}")

    def finish(self) -> list[tuple[str, str]]:
        """All keys that were not used, with reasons, in the file's order."""
        rest = [(key, self._reason(key)) for key in self._order if key not in self.used]
        return [*rest, *self._repeated]

    def _reason(self, key: str) -> str:
        setting = self._settings.get(key)
        if key in self._dropped:
            return self._dropped[key]
        if any(part in key for part in _SECRET_PARTS):
            return "passwords and tokens are never stored; use an SSH key (ssh-copy-id)"
        if setting is not None and setting.unresolved is not None:
            return setting.unresolved
        if setting is not None and not setting.value.strip():
            return "it is empty"
        for prefixes, reason in _REASONS_BY_PREFIX:
            if key.startswith(prefixes):
                return reason
        return _UNKNOWN
