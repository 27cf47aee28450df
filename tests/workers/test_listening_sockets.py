"""The sockets that a supervisor opens, or takes over from the previous version."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gateway.cli.supervisor.sockets import HandedSockets, ListeningSockets
from gateway.config.gateway import GatewayConfig


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
