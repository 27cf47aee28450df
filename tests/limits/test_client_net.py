"""The network that stands for a client."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.accounts import UNKNOWN, client_nets

DEFAULT = client_nets(32, 64)


@pytest.mark.parametrize(
    ("address", "net"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::/64"),
        (None, UNKNOWN),
        ("not an address", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_the_host_part_is_cut_off(address: str | None, net: str) -> None:
    assert DEFAULT(address) == net


@given(st.ip_addresses(), st.integers(0, 32), st.integers(0, 128))
def test_an_address_lies_in_its_net_and_its_net_is_its_own(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, v4_bits: int, v6_bits: int
) -> None:
    net = ipaddress.ip_network(client_nets(v4_bits, v6_bits)(str(address)))
    plain = getattr(address, "ipv4_mapped", None) or address
    assert plain in net
    assert net.prefixlen == (v4_bits if plain.version == 4 else v6_bits)
