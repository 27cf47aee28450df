"""The sockets that a supervisor opens, or takes over from the previous version."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gateway.cli.supervisor.sockets import HandedSockets, ListeningSockets
from gateway.config.gateway import GatewayConfig


@pytest.mark.parametrize("key", ["admin", "admin localhost:{port}", "admin 127.0.0.1:{port}"])
def test_the_admin_port_is_taken_over_whatever_text_its_address_had(key: str) -> None:
    with socket.socket() as previous, socket.socket() as other:
        for sock in (previous, other):
            sock.bind(("127.0.0.1", 0))
            sock.listen(16)
        where = previous.getsockname()
        admin = f"127.0.0.1:{where[1]}"
        config = GatewayConfig.for_origin("http://127.0.0.1:9", listeners=[{"address": "127.0.0.1:0"}], admin=admin)
        key = key.format(port=where[1])
        handed = HandedSockets({"127.0.0.1:1 0": [[other.dup().detach()]], key: [[previous.dup().detach()]]})
        opened = ListeningSockets.open(config, 1, {}, handed)
        assert [sock.getsockname() for sock in opened.admin] == [where]
        assert handed.taken == [key], "the previous version knows its sockets by this text"
        opened.close()
        handed.close_rest()


def test_an_admin_port_at_another_address_is_not_taken_over() -> None:
    with socket.socket() as previous:
        previous.bind(("127.0.0.1", 0))
        previous.listen(16)
        handed = HandedSockets({"admin 127.0.0.1:1": [[previous.dup().detach()]]})
        config = GatewayConfig.for_origin(
            "http://127.0.0.1:9", listeners=[{"address": "127.0.0.1:0"}], admin="127.0.0.1:0"
        )
        opened = ListeningSockets.open(config, 1, {}, handed)
        assert opened.admin[0].getsockname() != previous.getsockname()
        assert handed.taken == []
        opened.close()
        handed.close_rest()


def test_a_version_that_cannot_open_its_sockets_leaves_the_unix_socket_of_the_previous_one(tmp_path: Path) -> None:
    path = str(tmp_path / "gateway.sock")
    with socket.socket(socket.AF_UNIX) as previous, socket.socket() as taken, socket.socket(socket.AF_UNIX) as client:
        previous.bind(path)
        previous.listen(16)
        taken.bind(("127.0.0.1", 0))
        taken.listen(16)
        listeners = [{"address": f"unix:{path}"}, {"address": f"127.0.0.1:{taken.getsockname()[1]}"}]
        config = GatewayConfig.for_origin("http://127.0.0.1:9", listeners=listeners, admin="127.0.0.1:0")
        handed = HandedSockets({f"unix:{path} 0": [[previous.dup().detach()]]})
        with pytest.raises(OSError, match="in use"):
            ListeningSockets.open(config, 2, {}, handed)
        client.connect(path)
