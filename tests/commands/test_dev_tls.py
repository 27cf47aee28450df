"""The certificate of `dev --tls`: its names, its lifetime, and the permissions of its key."""

from __future__ import annotations

import ssl
import stat
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate

from gateway.commands.dev_tls import LocalCertificate, local_certificate, state_folder
from tests.certificates import Authority, Pair

DAY = 86_400.0
NOW = 1_790_000_000.0


def contents(made: LocalCertificate) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in made.authority.parent.iterdir()}


def shaken(server: Pair, authority: Path, name: str) -> None:
    """Have a client that believes an authority meet a server of this name, in memory; raises ssl.SSLError."""
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(server.certificate, server.key)
    pipes = [ssl.MemoryBIO() for _ in range(4)]
    client = ssl.create_default_context(cafile=str(authority)).wrap_bio(pipes[0], pipes[1], server_hostname=name)
    sides = [(client, pipes[1], pipes[2]), (theirs.wrap_bio(pipes[2], pipes[3], server_side=True), pipes[3], pipes[0])]
    for _ in range(3):
        for side, source, sink in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            sink.write(source.read())


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
def test_the_certificate_is_valid_for_every_local_name(tmp_path: Path, name: str) -> None:
    made = local_certificate(tmp_path / "deep" / "tls", time.time())
    shaken(Pair(made.certificate, made.key), made.authority, name)


def test_the_authority_is_limited_to_this_machine(tmp_path: Path) -> None:
    """Clients that trust it reject a certificate that its key signs for another host."""
    made = local_certificate(tmp_path, time.time())
    key = load_pem_private_key((tmp_path / "ca-key.pem").read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    subject = load_pem_x509_certificate(made.authority.read_bytes()).subject
    thief = Authority(tmp_path, "thief", key, subject)
    shaken(thief.issue("localhost", file="again"), made.authority, "localhost")
    for name in ("bank.test", "192.0.2.1"):
        with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree"):
            shaken(thief.issue(name), made.authority, name)


def test_keys_are_private_and_kept(tmp_path: Path) -> None:
    made = local_certificate(tmp_path / "tls", NOW)
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "tls").iterdir()} == {0o600}
    before = contents(made)
    assert set(before) == {"ca.pem", "ca-key.pem", "localhost.pem", "localhost-key.pem"}
    assert contents(local_certificate(tmp_path / "tls", NOW + 59 * DAY)) == before


def test_it_is_made_again_before_it_expires_and_the_authority_stays(tmp_path: Path) -> None:
    before = contents(local_certificate(tmp_path, NOW))
    after = contents(local_certificate(tmp_path, NOW + 61 * DAY))
    assert after["ca.pem"] == before["ca.pem"]
    assert after["localhost.pem"] != before["localhost.pem"]
    at_last = contents(local_certificate(tmp_path, NOW + 1_700 * DAY))
    assert at_last["ca.pem"] != before["ca.pem"]
    assert at_last["localhost.pem"] != after["localhost.pem"]


@pytest.mark.parametrize("file", ["ca.pem", "ca-key.pem", "localhost.pem", "localhost-key.pem"])
@pytest.mark.parametrize("spoil", ["cut", "gone", "of another"])
def test_a_damaged_file_is_made_again(tmp_path: Path, file: str, spoil: str) -> None:
    made = local_certificate(tmp_path / "tls", NOW)
    other = local_certificate(tmp_path / "other", NOW)
    spoilt = made.authority.with_name(file)
    match spoil:
        case "cut":
            spoilt.write_bytes(spoilt.read_bytes()[:100])
        case "gone":
            spoilt.unlink()
        case _:
            spoilt.write_bytes(other.authority.with_name(file).read_bytes())
    again = contents(local_certificate(tmp_path / "tls", NOW))
    assert again == contents(local_certificate(tmp_path / "tls", NOW))


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({}, "/home/a/.local/state/durable-gateway"),
        ({"XDG_STATE_HOME": "/state"}, "/state/durable-gateway"),
        ({"XDG_STATE_HOME": "state"}, "/home/a/.local/state/durable-gateway"),
        ({"XDG_STATE_HOME": ""}, "/home/a/.local/state/durable-gateway"),
    ],
)
def test_the_state_folder_follows_the_xdg_specification(environ: dict[str, str], folder: str) -> None:
    assert str(state_folder(environ, Path("/home/a"))) == folder
