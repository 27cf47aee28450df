"""Environment variables."""

from __future__ import annotations

from typing import Final

ENV_PREFIX: Final = "DURABLE_GATEWAY_"
"""Begins the name of every variable that sets a key of the configuration."""
ADMIN_TOKEN_VARIABLE: Final = f"{ENV_PREFIX}ADMIN_TOKEN"
"""Environment variable with the admin port's token.  Gateway and commands both read the token from it alone."""
