"""Credentials for origins: their sources, and the error line when they cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.credentials import load_credentials
from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig


def configured(**table: str) -> GatewayConfig:
    return GatewayConfig.for_origin("http://a", origin_credentials=table)


def test_a_value_is_read_from_a_file_or_a_variable_without_its_line_end(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("Bearer abc def\r\n")
    found = load_credentials(configured(file=str(file)), {})["default"]
    assert (found.header, found.value.get_secret_value()) == ("authorization", "Bearer abc def")
    found = load_credentials(configured(header="X-Key", environment="KEY"), {"KEY": "abc"})["default"]
    assert (found.header, found.value.get_secret_value()) == ("x-key", "abc")
    assert "abc" not in repr(found)
    assert load_credentials(configured(), {}) == load_credentials(GatewayConfig.for_origin("http://a"), {}) == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"two\nlines", "is not a header value: it should be one line of ASCII"),
        (b"nul\0", "is not a header value: it should be one line of ASCII"),
        ("schlüssel".encode(), "is not a header value: it should be one line of ASCII"),
        (b"x" * 20_000, "is larger than 16384 bytes"),
    ],
)
def test_an_unusable_file_is_one_line_without_its_content(tmp_path: Path, content: bytes | None, said: str) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_credentials(configured(file=str(file)), {})
    assert str(caught.value) == f"route.default.origin_credentials.file: {file}: {said}"


def test_an_unset_variable_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^route\.default\.origin_credentials\.environment: KEY: is not set$"):
        load_credentials(configured(environment="KEY"), {})
