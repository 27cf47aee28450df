"""Credentials for origins, from the files and environment variables that the configuration names.

They are kept apart from the configuration, so code that prints the configuration cannot print them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from gateway.config.errors import ConfigError, Mistakes
from gateway.config.gateway import GatewayConfig
from gateway.config.origins import OriginCredentialsConfig
from gateway.config.routes import RouteConfig

_MOST_BYTES: Final = 16_384
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


@dataclass(frozen=True, slots=True)
class OriginCredentials:
    """The header with the credentials for a route's origins: its name in lower case, and its value."""

    header: str
    value: SecretStr


def load_credentials(config: GatewayConfig, environ: Mapping[str, str]) -> dict[str, OriginCredentials]:
    """Load the credentials of all routes that have some, by route name.  Raises ConfigError with all mistakes."""
    found: dict[str, OriginCredentials] = {}
    mistakes = Mistakes()
    for route in config.routes:
        wanted = route.origin_credentials
        if wanted is not None and (wanted.file or wanted.environment):
            with mistakes.collected():
                found[route.name] = OriginCredentials(wanted.header, SecretStr(_value(route, wanted, environ)))
    mistakes.raise_any()
    return found


def _value(route: RouteConfig, wanted: OriginCredentialsConfig, environ: Mapping[str, str]) -> str:
    key = f"route.{route.name}.origin_credentials"
    if wanted.environment:
        where = f"{key}.environment: {wanted.environment}"
        if wanted.environment not in environ:
            raise ConfigError(f"{where}: is not set")
        text = environ[wanted.environment]
    else:
        where = f"{key}.file: {wanted.file}"
        text = read_secret(wanted.file, _MOST_BYTES, where).decode("latin-1")
    value = text.strip(" \t\r\n")
    if not value:
        raise ConfigError(f"{where}: is empty")
    if _HEADER_VALUE.fullmatch(value) is None:
        raise ConfigError(f"{where}: is not a header value: it should be one line of ASCII")
    return value


def read_secret(path: str, most_bytes: int, where: str) -> bytes:
    """Read a file with a secret or a key.

    Raises ConfigError if the file cannot be read or is larger than `most_bytes`.  The message begins with `where`.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise ConfigError(f"{where}: cannot be read: not a valid path") from None
    if len(data) > most_bytes:
        raise ConfigError(f"{where}: is larger than {most_bytes} bytes")
    return data
