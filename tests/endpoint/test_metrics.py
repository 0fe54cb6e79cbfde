"""Prometheus' text format."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkserve.endpoint import Sample, parse_metrics
from sparkserve.errors import EndpointError

PAGE = """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="demo",tp_rank="0"} 2.0

sglang:gen_throughput{model_name="demo"} 1.25e+02
http_requests_total{path="/a \\"b\\" \\\\ }",x="1",} 3 1700000000000
  plain_total   7
bucket{le="+Inf"} +Inf
not_a_number NaN
"""


def test_a_page_is_read():
    *samples, nan = parse_metrics(PAGE)
    assert samples == [
        Sample(
            "sglang:num_running_reqs",
            2.0,
            {"engine_type": "unified", "model_name": "demo", "tp_rank": "0"},
        ),
        Sample("sglang:gen_throughput", 125.0, {"model_name": "demo"}),
        Sample("http_requests_total", 3.0, {"path": '/a "b" \\ }', "x": "1"}),
        Sample("plain_total", 7.0),
        Sample("bucket", math.inf, {"le": "+Inf"}),
    ]
    assert math.isnan(nan.value)


@pytest.mark.parametrize(
    "line", ["<html>", "x", "x y", "1x 2", 'x{a="b" 1', "x{a=b} 1", 'x{="b"} 1', "x 0x1", "x 1_0"]
)
def test_a_line_that_is_no_sample_is_an_error_with_its_number(line):
    with pytest.raises(EndpointError, match="metrics line 2 is no sample"):
        parse_metrics(f"good 1\n{line}\n")


def escaped(text):
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# str.splitlines breaks at more characters than the format's line feed; engines write none.
values = st.text(
    st.characters(
        exclude_categories=["Cs", "Zl", "Zp"], exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85"
    )
)


@given(
    st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]*", fullmatch=True).filter(str.isascii),
    st.dictionaries(
        st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]*", fullmatch=True).filter(str.isascii), values
    ),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_any_sample_reads_back(name, labels, value):
    inner = ",".join(f'{key}="{escaped(text)}"' for key, text in labels.items())
    assert parse_metrics(f"{name}{{{inner}}} {value!r}\n") == [Sample(name, value, labels)]
