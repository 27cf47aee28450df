"""The names of environment variables."""

from __future__ import annotations

from typing import Final

ENV_PREFIX: Final = "DURABLE_GATEWAY_"
"""The prefix of all variables that set keys of the configuration."""
ADMIN_TOKEN_VARIABLE: Final = f"{ENV_PREFIX}ADMIN_TOKEN"
"""The variable with the token of the admin port.  The gateway and the commands read the token only from here."""
HANDED_VARIABLE: Final = f"{ENV_PREFIX}HANDED"
"""The variable with the descriptors that a gateway hands to the version that replaces it."""
