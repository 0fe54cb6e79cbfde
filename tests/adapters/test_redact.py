import logging

import pytest

from sparkserve.adapters.redact import redact, redact_log_records

HOSTILE = "a\"b'c\\d}, x"


@pytest.mark.parametrize(
    "text",
    [
        f"server_args={ {'port': 1, 'api_key': HOSTILE, 'admin_api_key': HOSTILE, 'z': 2}!r}",
        f"ServerArgs(api_key={HOSTILE!r}, ssl_keyfile_password={HOSTILE!r})",
        f"argv={['--api-key', HOSTILE, '--port', '1']!r}",
        "launched with --api-key abc'}, --admin-api-key=abc'}, --port 1",
    ],
)
def test_no_part_of_a_secret_survives(text):
    clean = redact(text)
    for part in ('a"b', "b'c", "d}, x", "abc"):
        assert part not in clean
    assert "'***'" in clean


def test_everything_else_is_left_alone():
    for text in ("api_key: None", "{'api_key': None, 'x': 'y'}", "my_api_keys = 'all'", ""):
        assert redact(text) == text
    clean = redact("{'port': 1, 'api_key': 'k', 'model': 'm'}")
    assert clean == "{'port': 1, 'api_key': '***', 'model': 'm'}"


@pytest.fixture
def records():
    before = logging.getLogRecordFactory()
    redact_log_records()
    yield logging.getLogRecordFactory()
    logging.setLogRecordFactory(before)


def test_log_records_are_clean_however_the_message_is_made(records):
    def make(message, *args):
        return records("n", logging.INFO, "f", 1, message, args, None)

    secret = {"api_key": HOSTILE}
    assert make("args=%s", secret).getMessage() == "args={'api_key': '***'}"
    assert make(f"args={secret}").getMessage() == "args={'api_key': '***'}"
    plain = make("%d of %d", 1, 2)
    assert (plain.msg, plain.args) == ("%d of %d", (1, 2))


def test_a_record_that_does_not_format_is_left_to_logging(records):
    broken = records("n", logging.INFO, "f", 1, "%d", ("x",), None)
    assert broken.args == ("x",)
