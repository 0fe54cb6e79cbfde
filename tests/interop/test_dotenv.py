"""The strict reader of env files, against a real shell where both must agree."""

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkserve.errors import ConfigError
from sparkserve.interop.dotenv import parse_dotenv


def values(text):
    return {item.key: item.value for item in parse_dotenv(text, where="env")}


FILE = """\
# comment
A=1
  export B=two   # comment
C="quoted # no comment"
D='single $A `x` \\ "inner"'
E=
F=""
G=a#b
H="a\\"b\\\\c\\$d\\n"
I=pre"mid dle"'en d'post
J=a\\ b
K="first
second"
L=$A-${B}x
M="${A}"
N=${Z:-fallback}
O=${E:-used}
P=${E-kept}
Q="line \\
joined"
R={"a":1}
"""


def test_a_file_means_what_a_shell_makes_of_it(tmp_path):
    path = tmp_path / "env"
    path.write_text(FILE)
    keys = list(values(FILE))
    done = subprocess.run(
        [
            "bash",
            "-c",
            '. "$1"; for k in "${@:2}"; do printf "%s\\0" "${!k}"; done',
            "x",
            path,
            *keys,
        ],
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert list(values(FILE).values()) == done.stdout.split("\0")[:-1]


def test_windows_files_are_read(tmp_path):
    assert values("\ufeffA=1\r\n\r\n# c\r\nB='x y'\r\n") == {"A": "1", "B": "x y"}


def test_lines_are_counted_and_repeats_kept():
    items = parse_dotenv('A=1\n\nB="x\ny"\nA=2\n', where="env")
    assert [(item.key, item.line) for item in items] == [("A", 1), ("B", 3), ("A", 5)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A=$(id)", "it runs a command"),
        ('A="x`id`"', "it runs a command"),
        ("A=$HOME/x", r"refers to \$HOME"),
        ("A=${HOME}/x", r"refers to \$HOME"),
        ("A=${A}", r"refers to \$A"),
        ("A=${B%.*}", "needs a shell"),
        ("A=$1", "needs a shell"),
        ("A=${B:?no}", "needs a shell"),
    ],
)
def test_what_needs_a_shell_is_not_guessed(text, reason):
    import re

    (item,) = parse_dotenv(text, where="env")
    assert item.value == ""
    assert re.search(reason, item.unresolved)


def test_a_value_behind_an_unresolved_one_is_unresolved_too():
    items = parse_dotenv("A=1\nA=$(id)\nB=$A\n", where="env")
    assert [item.unresolved is None for item in items] == [True, False, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A=1\nnonsense\n", "env line 2: 'nonsense' is no KEY=VALUE"),
        ("A = 1", "line 1: 'A = 1' is no KEY=VALUE"),
        ("1A=1", "no KEY=VALUE"),
        ("A=1 2", "something follows the value of A; put the value in quotes"),
        ('\nA="x', 'line 2: a quote " is not closed'),
        ("A='x\n\n", "line 1: a quote ' is not closed"),
        ('A="x" y', "something follows"),
        ("if true; then", "no KEY=VALUE"),
        ("A=1;B=2 C", "something follows"),
    ],
)
def test_a_malformed_line_is_named(text, message):
    with pytest.raises(ConfigError) as caught:
        parse_dotenv(text, where="env")
    assert message in caught.value.message


@given(st.text())
@settings(max_examples=300)
def test_any_text_is_read_or_refused(text):
    try:
        parse_dotenv(text, where="env")
    except ConfigError:
        return


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0'")),
        max_size=6,
    )
)
def test_single_quoted_values_come_back_as_they_are(table):
    text = "".join(f"{key}='{value}'\n" for key, value in table.items())
    assert values(text) == table
