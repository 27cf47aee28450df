"""Answers are whole or an error, against a scripted server."""

from __future__ import annotations

import logging
import pickle
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from pyspark_durable_streams.client import Client, ClientConfig
from pyspark_durable_streams.errors import BadOption, Refused, Unreachable
from pyspark_durable_streams.places import Place
from pyspark_durable_streams.walk import Walk
from tests.pyspark_durable_streams.hands import Hands

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


class Scripted:
    """Answers each connection's first request with the next of its replies, then closes."""

    def __init__(self) -> None:
        self.replies: list[bytes] = []
        self.heads: list[bytes] = []
        self.answers = threading.Event()
        self.answers.set()
        self.on_request: Callable[[], object] = lambda: None
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                head = b""
                while b"\r\n\r\n" not in head:
                    data = connection.recv(65_536)
                    if not data:
                        break
                    head += data
                if head:
                    self.heads.append(head)
                    self.answers.wait(10)
                    self.on_request()
                    reply = self.replies.pop(0) if self.replies else OK
                    # Or the client might send its next request before it has seen this connection's end.
                    connection.sendall(reply.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


@pytest.fixture
def server() -> Iterator[Scripted]:
    running = Scripted()
    yield running
    running.close()


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def client(server: Scripted, clock: Hands) -> Iterator[Client]:
    made = Client(
        ClientConfig(server.url, {"Authorization": "Bearer s3cret"}, tries=4), clock=clock, uniform=lambda: 1.0
    )
    yield made
    made.close()


CUT_SHORT = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhi",
    b"HTTP/1.1 200 OK\r\n\r\nhi",
    b"HTTP/1.1 200 OK\r\nContent-Le",
    b"",
]


@pytest.mark.parametrize("reply", CUT_SHORT)
def test_an_answer_that_may_lack_its_end_is_asked_for_again(server: Scripted, client: Client, reply: bytes) -> None:
    server.replies = [reply]
    assert client.request("GET", "/a").body == b"hi"
    assert client.requests == 2


@pytest.mark.parametrize("reply", CUT_SHORT)
def test_where_it_may_not_be_asked_for_again_it_is_an_error(server: Scripted, client: Client, reply: bytes) -> None:
    server.replies = [reply]
    with pytest.raises(Unreachable):
        client.request("POST", "/a", body=b"x", retry=False)
    assert client.requests == 1


@pytest.mark.parametrize("reply", CUT_SHORT[:4])
def test_a_body_that_is_read_as_it_comes_tells_that_it_broke_off(
    server: Scripted, client: Client, reply: bytes
) -> None:
    server.replies = [reply]
    with client.open("/a") as opened, pytest.raises(Unreachable):
        list(opened.chunks)


@pytest.mark.parametrize("body", [b"\r\nno end", b"Content-Length: 99\r\n\r\ncut"])
def test_a_refused_request_is_told_so_whatever_the_body(server: Scripted, client: Client, body: bytes) -> None:
    server.replies = [b"HTTP/1.1 403 No\r\n" + body]
    assert client.request("GET", "/a").status == 403
    assert client.requests == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"\r\nno end", ""),
        (b"Content-Length: 99\r\n\r\ncut", " cut"),
        (b"Content-Length: 9999999999\r\n\r\n" + b"x" * 5_000, " x"),
    ],
)
def test_a_refused_walk_is_told_so_whatever_the_body(server: Scripted, client: Client, body: bytes, said: str) -> None:
    server.replies = [b"HTTP/1.1 403 No\r\n" + body]
    with pytest.raises(Refused, match=f"^stream a from offset -1: 403{said}"):
        list(Walk(client, "a", Place()).parts())
    assert client.requests == 1


def test_429_and_5xx_are_tried_again_with_pauses_that_grow(server: Scripted, client: Client, clock: Hands) -> None:
    server.replies = [b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 429 No\r\nContent-Length: 0\r\n\r\n"]
    assert client.request("GET", "/a").status == 200
    assert clock.slept == [0.1, 0.2]


def test_retry_after_is_the_floor_of_a_pause(server: Scripted, client: Client, clock: Hands) -> None:
    server.replies = [b"HTTP/1.1 503 No\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"]
    assert client.request("GET", "/a").status == 200
    assert clock.slept == [7.0]


def test_a_long_pause_names_its_reason_and_a_short_one_does_not(
    server: Scripted, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    server.replies = [
        b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 No\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n",
    ]
    with caplog.at_level("WARNING", "pyspark_durable_streams"):
        assert client.request("GET", "/a").status == 200
    assert caplog.messages == [f"GET {server.url}/a: 503: try 3 of 4 in 7 s"]


def test_a_server_that_has_not_answered_yet_is_named_while_it_is_waited_for(
    server: Scripted, client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_durable_streams.client._NOTICE_S", 0.01)
    server.answers.clear()

    def answer(record: logging.LogRecord) -> bool:
        server.answers.set()
        return True

    caplog.handler.addFilter(answer)
    with caplog.at_level("WARNING", "pyspark_durable_streams"):
        for _ in range(2):
            assert client.request("GET", "/a").status == 200
    (message,) = caplog.messages
    assert message.startswith(f"GET {server.url}/a: no answer yet, waiting for up to ")


def test_a_try_that_fails_late_is_named(
    server: Scripted, client: Client, clock: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    server.replies = [b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"]
    server.on_request = lambda: clock.sleep(10)
    with caplog.at_level("WARNING", "pyspark_durable_streams"):
        assert client.request("GET", "/a").status == 200
    assert caplog.messages == [f"GET {server.url}/a: 503: try 2 of 4 in 0 s"]


def test_a_server_that_takes_no_connection_is_named_without_the_repr_of_one() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        client = Client(ClientConfig(url, tries=1, connect_s=0.05))
        with pytest.raises(
            Unreachable, match=rf"^GET {url}/a: ConnectTimeoutError: Connection to 127\.0\.0\.1 timed out"
        ):
            client.request("GET", "/a")
        client.close()
        for one in waiting:
            one.close()


def test_what_would_take_longer_than_there_is_time_is_given_up(server: Scripted, client: Client) -> None:
    server.replies = [b"HTTP/1.1 503 No\r\nRetry-After: 700\r\nContent-Length: 4\r\n\r\nbusy"]
    with pytest.raises(Unreachable, match=r"GET http://127.0.0.1:\d+/a: 503 busy$"):
        client.request("GET", "/a")


def test_tries_come_to_an_end(server: Scripted, client: Client) -> None:
    server.replies = [b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"] * 9
    with pytest.raises(Unreachable, match=r"500 \(4 tries\)"):
        client.request("GET", "/a")
    assert client.requests == 4


@pytest.mark.parametrize("status", [301, 400, 404, 410])
def test_what_another_try_cannot_change_is_the_answer(server: Scripted, client: Client, status: int) -> None:
    server.replies = [f"HTTP/1.1 {status} No\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n".encode()]
    assert client.request("GET", "/a").status == status
    assert client.requests == 1


@pytest.mark.parametrize("path", ["/../up", "/a/../../up?offset=-1", "/a/.", "/%2e%2E/up"])
def test_no_path_leads_out_of_the_url(server: Scripted, client: Client, path: str) -> None:
    with pytest.raises(BadOption, match="leads out of the url"):
        client.request("GET", path)
    assert client.requests == 0


def test_secrets_are_sent_and_not_shown(server: Scripted, client: Client) -> None:
    client.request("GET", "/a b?offset=1")
    assert b"GET /a%20b?offset=1 HTTP/1.1" in server.heads[0]
    assert b"authorization: Bearer s3cret" in server.heads[0]
    assert "s3cret" not in repr(client.config)
    again = pickle.loads(pickle.dumps(client))
    assert again.config == client.config
    again.close()


@pytest.mark.parametrize("url", ["", "h:1", "ftp://h", "http://", "http://h/?a=b", "http://u:s3cret@h/"])
def test_a_url_that_is_none_is_told(url: str) -> None:
    with pytest.raises(BadOption, match="url: ") as caught:
        ClientConfig(url)
    assert "s3cret" not in str(caught.value)
