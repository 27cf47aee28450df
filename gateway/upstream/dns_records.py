"""Looks up the address records of a name, with their time to live, which `getaddrinfo` does not tell.

dnspython sends the requests.  All of its failures become `OSError` with one short line, which is equal for equal
failures.  The module is imported only if the configuration needs it, because dnspython takes 0.1 s to import.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

import dns.asyncresolver
import dns.exception
import dns.resolver

_MARGIN_S: Final = 1.0
_SERVER_S: Final = 0.5
"""The most seconds for an answer of one server.  Then the next server is asked, or the same one again."""
_TOO_LATE: Final = "no DNS server has answered in time"


class AddressRecords(NamedTuple):
    """The addresses of a name."""

    addresses: tuple[str, ...]
    ttl_s: float
    """How long the answer is valid."""


async def address_records(name: str, *, is_v6: bool, within_s: float) -> AddressRecords:
    """Ask the system's DNS servers for the A records of a name, or for its AAAA records.  Raises OSError.

    A name without a dot at its end is looked up in the system's search domains too.
    """
    try:
        async with asyncio.timeout(within_s + _MARGIN_S):
            # A resolver reads /etc/resolv.conf when it is made, and the system's servers may change.
            resolver = dns.asyncresolver.Resolver()
            resolver.timeout = _SERVER_S
            answer = await resolver.resolve(name, "AAAA" if is_v6 else "A", search=True, lifetime=within_s)
            return AddressRecords(
                tuple(str(record.address) for record in answer), float(answer.chaining_result.minimum_ttl)
            )
    except Exception as error:
        # Answers are foreign bytes, so take care of errors too that dnspython does not expect.
        raise OSError(_reason(error)) from error


def _reason(error: Exception) -> str:
    match error:
        case dns.resolver.NXDOMAIN():
            return "the name does not exist"
        case dns.resolver.NoAnswer():
            return "the name has no such address"
        case dns.resolver.NoNameservers():
            return "no DNS server has given a valid answer"
        case dns.resolver.NoResolverConfiguration():
            return "the system has no DNS server"
        case dns.exception.Timeout() | TimeoutError():
            return _TOO_LATE
    return f"the look-up has failed ({type(error).__name__})"
