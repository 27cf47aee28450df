"""The client's identity behind trusted proxies, whatever clients and proxies send."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.protocol.client_address import Proxies

TRUSTED = ("10.0.0.0/8", "2001:db8:ff::/48", "192.0.2.200", "unix")
PROXY = "10.0.0.1"
CUSTOMARY = Proxies(TRUSTED, "x-forwarded-for")
STANDARD = Proxies(TRUSTED, "forwarded")


def fields(**lines: str | list[str]) -> CIMultiDict[str]:
    found: CIMultiDict[str] = CIMultiDict()
    for name, values in lines.items():
        for value in [values] if isinstance(values, str) else values:
            found.add(name.replace("_", "-"), value)
    return found


def as_bytes(headers: CIMultiDict[str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"GET /a HTTP/1.1\r\nHost: a\r\n{lines}\r\nX-Forwarded-For: 6.6.6.6".encode()


@pytest.mark.parametrize(
    ("address", "is_trusted"),
    [
        ("10.0.0.1", True),
        ("10.255.255.255", True),
        ("11.0.0.1", False),
        ("::ffff:10.0.0.1", True),
        ("192.0.2.200", True),
        ("192.0.2.201", False),
        ("2001:db8:ff::1", True),
        ("2001:db8:fe::1", False),
        ("fe80::1%eth0", False),
        ("", False),
        ("nonsense", False),
        (None, True),
    ],
)
def test_a_proxy_is_trusted_by_its_address(address: str | None, is_trusted: bool) -> None:
    assert CUSTOMARY.trusts(address) is is_trusted


def test_unix_sockets_are_trusted_only_by_name() -> None:
    assert not Proxies(["0.0.0.0/0", "::/0"], "forwarded").trusts(None)


CUSTOMARY_CASES: list[tuple[str | list[str], str]] = [
    ("203.0.113.7", "203.0.113.7"),
    ("203.0.113.7:4711", "203.0.113.7"),
    ("2001:db8::7", "2001:db8::7"),
    ("[2001:db8::7]", "2001:db8::7"),
    ("[2001:db8::7]:4711", "2001:db8::7"),
    ("::ffff:203.0.113.7", "203.0.113.7"),
    # Everything before the first untrusted address is that client's own claim.
    ("6.6.6.6, 203.0.113.7", "203.0.113.7"),
    ("6.6.6.6, 203.0.113.7, 10.0.0.2", "203.0.113.7"),
    (["6.6.6.6", "203.0.113.7", "10.0.0.2, 10.0.0.3"], "203.0.113.7"),
    ("10.0.0.9, 203.0.113.7", "203.0.113.7"),
    # All addresses are trusted: the first one is the client.
    ("10.0.0.4, 10.0.0.3", "10.0.0.4"),
    # A member that is not an address ends the search at the proxy that wrote it.
    ("unknown", PROXY),
    ("203.0.113.7, unknown, 10.0.0.2", "10.0.0.2"),
    ("203.0.113.7, _hidden", PROXY),
    ("", PROXY),
    (",", PROXY),
    ("203.0.113.7,", PROXY),
    ("203.0.113.999", PROXY),
    ("203.0.113.7:", PROXY),
    ("[203.0.113.7", PROXY),
    ("[2001:db8::7]x", PROXY),
    ("fe80::1%eth0", PROXY),
    ("203.0.113.7 6.6.6.6", PROXY),
    ("\udcff", PROXY),
]


@pytest.mark.parametrize(("lines", "client"), CUSTOMARY_CASES)
def test_the_client_is_the_right_most_that_is_no_trusted_proxy(lines: str | list[str], client: str) -> None:
    headers = fields(X_Forwarded_For=lines)
    assert CUSTOMARY.client_address(PROXY, headers) == client
    assert CUSTOMARY.client_address("203.0.113.99", headers) == "203.0.113.99"
    assert CUSTOMARY.client_address(None, headers) == (client if client != PROXY else None)
    if "\udcff" not in lines:
        assert CUSTOMARY.client_and_scheme_of(PROXY, as_bytes(headers))[0] == client
        assert CUSTOMARY.client_and_scheme_of("203.0.113.99", as_bytes(headers)) == ("203.0.113.99", "")


STANDARD_CASES: list[tuple[str | list[str], str, str]] = [
    ("for=203.0.113.7", "203.0.113.7", "http"),
    ("For=203.0.113.7;Proto=HTTPS;by=10.0.0.1", "203.0.113.7", "https"),
    ('for="203.0.113.7:4711"', "203.0.113.7", "http"),
    ('for="[2001:db8::7]:4711";proto=https', "2001:db8::7", "https"),
    ('for="\\203.0.113.7"', "203.0.113.7", "http"),
    ("for=6.6.6.6;proto=https, for=203.0.113.7;proto=http", "203.0.113.7", "http"),
    ("for=6.6.6.6, for=203.0.113.7;proto=https, for=10.0.0.2;proto=http", "203.0.113.7", "https"),
    (["for=6.6.6.6", "for=203.0.113.7", "for=10.0.0.2"], "203.0.113.7", "http"),
    ('host="a,b;for=6.6.6.6";for=203.0.113.7', "203.0.113.7", "http"),
    ("for=unknown;proto=https", PROXY, "https"),
    ("for=_hidden, for=10.0.0.2", "10.0.0.2", "http"),
    ("proto=https", PROXY, "https"),
    ("proto=gopher;for=203.0.113.7", "203.0.113.7", "http"),
    # A list that does not parse completely counts as absent.
    ('for="6.6.6.6, for=203.0.113.7', PROXY, "http"),
    ("for = 203.0.113.7", PROXY, "http"),
    ("for=203.0.113.7;", "203.0.113.7", "http"),
    (";;for=203.0.113.7;;proto=https,, ", "203.0.113.7", "https"),
    ("for=203.0.113.7;proto=https, ;", "203.0.113.7", "https"),
    ("for", PROXY, "http"),
    ("", PROXY, "http"),
    (['for="6.6.6.6', "for=203.0.113.7"], "203.0.113.7", "http"),
]


@pytest.mark.parametrize(("lines", "client", "scheme"), STANDARD_CASES)
def test_the_standard_header_is_read_in_the_same_way(lines: str | list[str], client: str, scheme: str) -> None:
    headers = fields(Forwarded=lines)
    assert STANDARD.client_address(PROXY, headers) == client
    assert STANDARD.scheme(PROXY, headers, "http") == scheme
    found, stated = STANDARD.client_and_scheme_of(PROXY, as_bytes(headers))
    assert (found, stated or "http") == (client, scheme)
    assert STANDARD.client_address("203.0.113.99", headers) == "203.0.113.99"
    assert STANDARD.scheme("203.0.113.99", headers, "http") == "http"


@pytest.mark.parametrize(
    ("lines", "scheme"),
    [("https", "https"), ("HTTPS", "https"), ("http", "http"), ("https, http", "http"), (["http", "https"], "https"),
     ("ftp", "https"), ("", "https")],
)  # fmt: skip
def test_the_scheme_of_x_forwarded_proto_is_the_nearest_proxys(lines: str | list[str], scheme: str) -> None:
    headers = fields(X_Forwarded_For="203.0.113.7", X_Forwarded_Proto=lines)
    assert CUSTOMARY.scheme(PROXY, headers, "https") == scheme
    assert CUSTOMARY.scheme("203.0.113.99", headers, "https") == "https"
    assert (CUSTOMARY.client_and_scheme_of(PROXY, as_bytes(headers))[1] or "https") == scheme
    assert CUSTOMARY.client_and_scheme_of("203.0.113.99", as_bytes(headers))[1] == ""


def test_the_other_header_is_ignored() -> None:
    headers = fields(Forwarded="for=6.6.6.6;proto=https", X_Forwarded_For="203.0.113.7")
    assert CUSTOMARY.client_address(PROXY, headers) == "203.0.113.7"
    assert CUSTOMARY.scheme(PROXY, headers, "http") == "http"
    assert STANDARD.client_address(PROXY, headers) == "6.6.6.6"


def test_a_long_list_is_read_up_to_a_bound() -> None:
    many = ", ".join(["203.0.113.7", *["10.0.0.2"] * 1_000])
    assert CUSTOMARY.client_address(PROXY, fields(X_Forwarded_For=many)) == "10.0.0.2"
    members = ", ".join(["for=203.0.113.7", *["for=10.0.0.2"] * 1_000])
    assert STANDARD.client_address(PROXY, fields(Forwarded=members)) == "10.0.0.2"


_OF_NO_PROXY = st.ip_addresses(v=4).map(str).filter(lambda one: not CUSTOMARY.trusts(one))
_PROXIES = st.lists(st.sampled_from(["10.0.0.2", "10.9.9.9", "192.0.2.200", "2001:db8:ff::3"]), max_size=4)


@example("\n", "203.0.113.7", [])
@given(st.text(max_size=30), _OF_NO_PROXY, _PROXIES)
def test_a_client_cannot_claim_another_address(made_up: str, client: str, inside: list[str]) -> None:
    """Whatever the client sends: each proxy appends the address it was reached from."""
    assert CUSTOMARY.client_address(PROXY, fields(X_Forwarded_For=", ".join([made_up, client, *inside]))) == client
    members = [f'for="[{one}]"' if ":" in one else f"for={one}" for one in (client, *inside)]
    assert STANDARD.client_address(PROXY, fields(Forwarded=[made_up, ", ".join(members)])) == client
