import pytest

from tests.native.tables import make_table


@pytest.fixture
def table(tmp_path):
    return make_table(tmp_path / "rows ünd spaces.bin")
