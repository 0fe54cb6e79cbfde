"""Keep the API key out of the engine's log: SGLang logs all its settings at start, key included.

Works on every log record of the process, whichever statement writes it, and needs to know no
key: it looks for the names of the secret settings. Standard library only.
"""

from __future__ import annotations

import logging
import re

_SECRETS = "api_key|admin_api_key|ssl_keyfile_password"
_FLAGS = "--api-key|--admin-api-key|--ssl-keyfile-password"
_QUOTED = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_PATTERNS = (
    # A dict or keyword form of the settings: 'api_key': '...' or api_key='...'.
    re.compile(rf"(\b(?:{_SECRETS})(?:['\"]: ?|=)){_QUOTED}"),
    # A list form of the command line: '--api-key', '...'.
    re.compile(rf"(['\"](?:{_FLAGS})['\"], ?){_QUOTED}"),
    # A plain command line: --api-key ... or --api-key=...
    re.compile(rf"((?:{_FLAGS})[ =])[^\s'\"]+"),
)


def redact(text: str) -> str:
    """The text with the values of secret settings replaced by ``'***'``."""
    for pattern in _PATTERNS:
        text = pattern.sub(r"\1'***'", text)
    return text


def redact_log_records() -> None:
    """Redact every log record that this process makes from now on."""
    make = logging.getLogRecordFactory()

    def make_redacted(*args: object, **kwargs: object) -> logging.LogRecord:
        record = make(*args, **kwargs)
        try:
            text = record.getMessage()
        except (TypeError, ValueError, KeyError):
            # Arguments that do not fit their format: logging reports that itself.
            return record
        clean = redact(text)
        if clean != text:
            record.msg, record.args = clean, None
        return record

    logging.setLogRecordFactory(make_redacted)
