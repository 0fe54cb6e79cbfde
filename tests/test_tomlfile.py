"""Our TOML writer against the standard library's reader."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkserve.errors import ConfigError
from sparkserve.tomlfile import emit_toml, read_toml

texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), texts
)
tables = st.recursive(
    st.dictionaries(texts, st.one_of(scalars, st.lists(scalars, max_size=3)), max_size=3),
    lambda inner: st.dictionaries(
        texts, st.one_of(scalars, inner, st.lists(inner, min_size=1, max_size=2)), max_size=3
    ),
    max_leaves=8,
)


@given(tables)
def test_what_is_written_reads_back_equal(table):
    assert tomllib.loads(emit_toml(table)) == table


def test_a_syntax_error_names_file_line_and_column(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("a = 1\nb = = 2\n")
    with pytest.raises(ConfigError, match=r"broken\.toml: not valid TOML: .*line 2, column 5"):
        read_toml(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"a = '\xff'", "not UTF-8 text at byte 5"), (None, "No such file"), ("dir", "directory")],
)
def test_unreadable_files_say_why(tmp_path, content, message):
    path = tmp_path / "file.toml"
    if content == "dir":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_toml(path)


def test_a_byte_order_mark_is_accepted(tmp_path):
    path = tmp_path / "file.toml"
    path.write_bytes(b"\xef\xbb\xbfa = 1\r\n")
    assert read_toml(path) == {"a": 1}
