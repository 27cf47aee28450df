"""The rules for fields that requests and replies of HTTP/2 have in common (RFC 9113 section 8.2)."""

from __future__ import annotations

import re
from typing import Final

is_name: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
is_value: Final = re.compile(rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?").fullmatch
"""A field value of HTTP/1.1 (RFC 9110 section 5.5): no control characters, no whitespace at either end."""
is_length: Final = re.compile(rb"[0-9]{1,18}").fullmatch
FORBIDDEN: Final = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
"""Fields that concern a connection of HTTP/1.1; a message with one of them is malformed (section 8.2.2)."""
