import pytest

from gateway.origin.s2.names import BadName, check_basin_name, check_stream_name, check_token_id


@pytest.mark.parametrize("name", ["basin-00", "00000000", "b" * 48, "a--------b"])
def test_a_basin_may_have_this_name(name: str) -> None:
    check_basin_name(name)


@pytest.mark.parametrize("name", ["", "short12", "-basin-00", "basin-00-", "Basin-00", "basin_00", "b" * 49])
def test_a_basin_may_not_have_this_name(name: str) -> None:
    with pytest.raises(BadName):
        check_basin_name(name)


@pytest.mark.parametrize("name", ["s", " ", "a/b", "...", "日本語", "é" * 256])
def test_a_stream_may_have_this_name(name: str) -> None:
    check_stream_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a\0b", "a" * 513, "é" * 257])
def test_a_stream_may_not_have_this_name(name: str) -> None:
    with pytest.raises(BadName):
        check_stream_name(name)


@pytest.mark.parametrize("name", ["", "a\0b", "a" * 97])
def test_a_token_may_not_have_this_id(name: str) -> None:
    with pytest.raises(BadName):
        check_token_id(name)
