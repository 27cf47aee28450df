"""The requests and the settings of the two gateways that `tests/server/fast_and_strict.py` compares."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

PATHS: Final = {"/t": "text/plain", "/j": "application/json", "/b": "application/octet-stream"}
"""Content types by path.  At `/b` cookies are the credentials, elsewhere what the settings say."""
QUERIES: Final = [
    "",
    "?offset=-1",
    "?offset=-1&x=1",
    "?offset=now",
    "?offset=-1&live=long-poll",
    "?offset=zzz",
    "?offset=",
]
LINES: Final = [
    "Accept: */*",
    "Accept-Encoding: gzip",
    "Cookie: a=b",
    "Cookie: c=d",
    "Authorization: Bearer a",
    "Authorization: Bearer b",
    "Origin: https://a.example",
    "Origin: https://b.example",
    "Origin: https://c.example",
    "User-Agent: u",
    "User-Agent: v",
    "User-Agent: a\x01b",
    "Connection: close",
    "Cache-Control: no-cache",
    "X-Forwarded-For: 203.0.113.7",
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
]
PAIRS: Final = [
    (["Authorization: Bearer a"], ["Authorization: Bearer b"]),
    (["Cookie: a=b"], ["Cookie: c=d"]),
    (["Origin: https://a.example"], ["Origin: https://b.example"]),
    (["Origin: https://a.example"], ["Origin: https://c.example"]),
    (["Accept-Encoding: gzip"], []),
    (["Connection: close"], []),
    (["User-Agent: u"], ["User-Agent: a\x01b"]),
    (["Cookie: a=b"], ["Cookie: a=b"] * 140),
]
"""Headers of two requests that are alike but for what the fast path must not take for the same."""
VERSIONS: Final = ["1", "12", "2", "112"]
"""The versions of HTTP of requests that follow each other."""
PROXIES: Final[list[dict[str, Any]]] = [{}, {}, {"forwarded_by": "forwarded"}, {"trusted_proxies": []}]
"""Whose forwarding headers are believed, beside the usual."""
CLIENTS: Final = [
    [],
    ["User-Agent: u", "X-Forwarded-For: 203.0.113.1", "Authorization: Bearer a"],
    ["User-Agent: v", "X-Forwarded-For: 203.0.113.2", "Authorization: Bearer b", "Referer: https://a.example/1"],
    ["X-Forwarded-For: 203.0.113.1, 10.0.0.1", "Origin: https://a.example"],
    ["x-forwarded-for: 203.0.113.3", "X-Forwarded-For: 203.0.113.4", "Origin: https://b.example"],
    ["X-FORWARDED-FOR: 203.0.113.5", "Cookie: a=b"],
    ["X-Forwarded-For: unknown", "Accept-Encoding: gzip", "Cookie: c=d"],
    ["traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Forwarded: for=203.0.113.6"],
]
"""Headers of clients that ask for the same."""
_VALUES: Final[dict[str, list[str]]] = {
    "X-Forwarded-For": [
        *(f"203.0.113.{number}" for number in range(1, 4)),
        "203.0.113.1, 10.0.0.1",
        "203.0.113.1,127.0.0.1",
        "203.0.113.1:8080",
        "2001:db8::1",
        '"[2001:db8::1]:80"',
        "unknown",
        "",
    ],
    "Forwarded": ["for=203.0.113.6", 'for="[2001:db8::2]"', "for=_hidden", "by=203.0.113.7;for=203.0.113.8"],
    "X-Real-IP": ["203.0.113.9"],
    "X-Forwarded-Proto": ["https", "http"],
    "Authorization": ["Bearer a", "Bearer b"],
    "traceparent": [
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
        "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
        "01-short",
    ],
    "Origin": ["https://a.example", "https://b.example", "HTTPS://B.example", "https://c.example", "null"],
    "User-Agent": ["u", "v", "", "a  b", "x" * 300],
    "Referer": ["https://a.example/1", "https://a.example/2"],
    "Cookie": ["a=b", "c=d"],
    "Accept": ["*/*", "text/event-stream"],
    "Accept-Encoding": ["gzip", "gzip;q=0", "identity", "br, gzip", "GZIP"],
    "If-None-Match": ["*", '"x"'],
    "Cache-Control": ["no-cache"],
    "X-Request-Id": ["1", "2"],
    "X-Unknown": ["1", "2"],
}
"""Headers that differ from client to client, with the values that clients send."""


@st.composite
def _line(draw: st.DrawFn) -> str:
    """A header line in one of its spellings."""
    name = draw(st.sampled_from(sorted(_VALUES)))
    spelled = draw(st.sampled_from([name, name, name.lower(), name.upper(), name.swapcase()]))
    colon = draw(st.sampled_from([": ", ": ", ":", ":\t", ":   "]))
    return spelled + colon + draw(st.sampled_from(_VALUES[name])) + draw(st.sampled_from(["", "", "", " ", "\t "]))


SECTIONS: Final = st.sampled_from(CLIENTS) | st.lists(_line(), max_size=6)
"""The header lines of a client, in any order; some names may be there twice."""
CORS: Final = {"cors": {"allow_origins": ["https://a.example", "https://b.example"], "allow_credentials": True}}
FRESH: Final[dict[str, Any]] = {"tail_fresh_s": 20.0}
"""With it a tail is repeated for a while, so that open streams have remembered answers too."""
UNCODED: Final[dict[str, Any]] = {**FRESH, "compression": []}
SETTINGS: Final[list[dict[str, Any]]] = [
    FRESH,
    {**FRESH, "credential_headers": ["authorization", "cookie"]},
    {**FRESH, "credentials": "shared"},
    {
        **FRESH,
        "credentials": "shared",
        "credential_headers": ["authorization", "cookie"],
        "cors": {"allow_origins": ["*"]},
    },
    {**FRESH, **CORS},
    {**FRESH, "trust_s": 1.0},
    UNCODED,
    {"credentials": "bypass"},
    {"tail": "asked"},
    {"cache": False},
]
LIMITS: Final[list[dict[str, Any]]] = [
    {"rate_limits": [{"name": "each", "requests_per_s": 1.0, "burst": 5}]},
    {"rate_limits": [{"name": "each", "requests_per_s": 0.5, "burst": 9}, {"name": "open", "live_reads": 1}]},
    {"rate_limits": [{"name": "bytes", "bytes_per_s": 4_000}]},
    {"rate_limits": [{"name": "all", "per": "all", "requests_per_s": 2.0, "burst": 12}]},
    {"rate_limits": [{"name": "route", "per": "route", "requests_per_s": 1.0, "burst": 8, "live_reads": 3}]},
    {"client_live_reads": 1},
    {"client_live_reads": 2, "rate_limits": [{"name": "far", "requests_per_s": 1_000.0}]},
]
"""Limits that a few requests reach."""
SOME_WITH_CORS: Final = [*SETTINGS, *[{**FRESH, **CORS}] * 4]
