"""The entry point that SGLang calls in each of its processes (group ``sglang.srt.plugins``).

Its import must never fail, since SGLang would go on without us: standard library only. With no
EngineSpec named by the environment it does nothing, so a plain ``sglang serve`` stays plain.
"""

from __future__ import annotations

import os

from sparkserve.adapters.fatal import die
from sparkserve.adapters.redact import redact_log_records

_SPEC_VARIABLE = "SPARKSERVE_ENGINE_SPEC"


def register() -> None:
    """Install the adapters that this rank's EngineSpec names, or end the process.

    Raises:
        SystemExit: 78, after one line on stderr, when anything at all keeps an adapter out.
    """
    path = os.environ.get(_SPEC_VARIABLE)
    if not path:
        return
    redact_log_records()
    try:
        from sparkserve.adapters.install import install_from

        install_from(path)
    except Exception as error:  # noqa: BLE001 - SGLang swallows it and would serve unpatched
        die("frame", f"{type(error).__name__}: {error}")
