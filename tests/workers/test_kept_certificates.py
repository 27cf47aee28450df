"""The certificates of a worker that starts again, and of a reload: those that the other workers have."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli.supervisor.kept_certificates import KeptCertificates, handing_over
from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig
from gateway.server.certificates import Certificates, load_certificates
from gateway.server.handshake import ALPN
from gateway.workers.control import ChannelEnd, Control
from tests.certificates import Authority, Pair


def config(pair: Pair, **tls: object) -> GatewayConfig:
    listener = {"address": "127.0.0.1:0", "tls": {"certificates": [pair.as_config()], **tls}}
    return GatewayConfig.for_origin("http://127.0.0.1:1", admin="127.0.0.1:0", listeners=[listener])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


class Stage:
    """A supervisor's copy, and a worker that runs with the certificates of the start."""

    def __init__(self, started: GatewayConfig, ours: socket.socket, theirs: socket.socket) -> None:
        self.kept = KeptCertificates(started)
        self.at_start = self.in_use = self.kept.of_worker(1, started)
        self._supervisor = ChannelEnd(ours)
        self._hand_over = handing_over(Control(theirs))

    def worker_reads(self, config: GatewayConfig) -> int:
        """Returns the number of messages that the supervisor gets."""
        self.in_use = load_certificates(config.every_listener, ALPN, self.in_use)
        self._hand_over(self.in_use)
        messages = self._supervisor.receive() or []
        for message in messages:
            assert message["kind"] == "certificates"
            self.kept.hear(message)
        return len(messages)


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.issue("a.test")


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


Sockets = tuple[socket.socket, socket.socket]


def pems(certificates: Certificates) -> list[bytes]:
    return [one.pem.certificate for loaded in certificates.values() for one in loaded.served]


def test_a_worker_that_starts_again_has_the_renewed_certificates_although_their_key_is_unusable_now(
    authority: Authority, pair: Pair, sockets: Sockets
) -> None:
    stage = Stage(config(pair), *sockets)
    authority.issue("a.test")
    assert stage.worker_reads(config(pair)) == 1
    assert pems(stage.in_use) != pems(stage.at_start)
    pair.key.write_text("broken")
    assert stage.worker_reads(config(pair)) == 0, "the certificates have not changed"
    again = stage.kept.of_worker(2, config(pair))
    assert pems(again) == pems(stage.in_use)
    for name in (None, "a.test"):
        first = stage.at_start[0].session_context(name)
        assert again[0].session_context(name) is first, "sessions of the other workers are resumed"


def test_a_pair_whose_path_has_come_by_a_reload_is_kept_too(authority: Authority, pair: Pair, sockets: Sockets) -> None:
    stage, other = Stage(config(pair), *sockets), authority.issue("b.test")
    stage.worker_reads(config(other))
    other.certificate.unlink()
    assert pems(stage.kept.of_worker(2, config(other))) == pems(stage.in_use)
    assert pems(stage.kept.read(config(other))) == pems(stage.in_use), "a reload is not refused"
    pair.key.unlink()
    with pytest.raises(ConfigError):
        stage.kept.read(config(pair))


def test_an_authority_that_was_removed_is_not_trusted_again(
    tmp_path: Path, authority: Authority, pair: Pair, sockets: Sockets
) -> None:
    trusted, removed, trust = Authority(tmp_path, "good"), Authority(tmp_path, "bad"), tmp_path / "trust.pem"
    trust.write_bytes(trusted.file.read_bytes() + removed.file.read_bytes())
    checked = config(pair, client_ca=str(trust), client_certificates="required")
    stage = Stage(checked, *sockets)
    trust.write_bytes(trusted.file.read_bytes())
    stage.worker_reads(checked)
    trust.write_text("broken")
    (again,) = stage.kept.of_worker(2, checked)[0].served
    assert again.context.get_ca_certs() == stage.in_use[0].served[0].context.get_ca_certs()
    assert len(again.context.get_ca_certs()) == 1


def test_a_worker_without_a_usable_certificate_has_those_of_its_siblings(
    authority: Authority, pair: Pair, sockets: Sockets
) -> None:
    """The configuration of a reload may name files that are gone before a worker has read them."""
    stage = Stage(config(pair), *sockets)
    other = authority.issue("b.test")
    other.key.unlink()
    assert stage.kept.of_worker(2, config(other)) == stage.at_start
