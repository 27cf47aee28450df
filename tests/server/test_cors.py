"""CORS answered by the gateway."""

from __future__ import annotations

import inspect

import pytest
from multidict import CIMultiDict

from gateway.config.routes import CorsConfig
from gateway.protocol import names
from gateway.server.cors import apply, is_preflight, preflight_headers

ANY = CorsConfig()
ONE = CorsConfig(
    allow_origins=("https://app.example",),
    allow_credentials=True,
    max_age_s=60,
    allow_headers=("X-Tenant",),
    expose_headers=("X-Shard",),
)


def listed(value: str) -> set[str]:
    return {name.strip().lower() for name in value.split(",")}


def protocol_headers(prefix: str) -> set[str]:
    return {
        value.lower()
        for name, value in inspect.getmembers(names)
        if name.isupper() and isinstance(value, str) and value.startswith(prefix)
    }


class TestPreflight:
    def test_any_origin(self) -> None:
        headers = preflight_headers(ANY, "https://a.example", "PUT", "content-type")
        assert headers is not None
        assert headers["Access-Control-Allow-Origin"] == "*"
        assert headers["Access-Control-Max-Age"] == "86400"
        assert "Vary" not in headers
        assert "Access-Control-Allow-Credentials" not in headers

    def test_methods_and_headers_of_the_protocol_are_allowed(self) -> None:
        headers = preflight_headers(ANY, "https://a.example", "GET", None)
        assert headers is not None
        assert listed(headers["Access-Control-Allow-Methods"]) == {"get", "head", "post", "put", "delete", "options"}
        allowed = listed(headers["Access-Control-Allow-Headers"])
        assert allowed >= {"content-type", "authorization", "if-none-match"}
        assert allowed >= {"stream-seq", "stream-ttl", "stream-expires-at", "stream-closed"}
        assert allowed >= {"stream-forked-from", "stream-fork-offset", "stream-fork-sub-offset"}
        assert allowed >= {"producer-id", "producer-epoch", "producer-seq"}

    def test_a_named_origin_with_credentials(self) -> None:
        headers = preflight_headers(ONE, "https://app.example", "POST", None)
        assert headers is not None
        assert headers["Access-Control-Allow-Origin"] == "https://app.example"
        assert headers["Access-Control-Allow-Credentials"] == "true"
        assert headers["Access-Control-Max-Age"] == "60"
        assert headers["Vary"] == "Origin"
        assert "x-tenant" in listed(headers["Access-Control-Allow-Headers"])

    @pytest.mark.parametrize(
        "origin", ["https://evil.example", "https://app.example.evil", "http://app.example", "null", "*", ""]
    )
    def test_an_origin_that_is_not_allowed_is_refused(self, origin: str) -> None:
        assert preflight_headers(ONE, origin, "GET", None) is None

    @pytest.mark.parametrize(("origin", "method"), [(None, "GET"), ("https://a.example", None), (None, None)])
    def test_a_request_that_is_not_a_preflight_has_no_preflight_headers(
        self, origin: str | None, method: str | None
    ) -> None:
        assert preflight_headers(ANY, origin, method, None) is None
        assert not is_preflight("OPTIONS", origin, method)

    def test_only_options_is_a_preflight(self) -> None:
        assert is_preflight("OPTIONS", "https://a.example", "GET")
        assert not is_preflight("GET", "https://a.example", "GET")


class TestReply:
    def test_every_protocol_header_is_exposed(self) -> None:
        headers: CIMultiDict[str] = CIMultiDict()
        apply(ANY, "https://a.example", headers)
        exposed = listed(headers["Access-Control-Expose-Headers"])
        assert exposed >= protocol_headers("Stream-")
        assert exposed >= protocol_headers("Producer-")
        assert exposed >= {"location", "etag", "cache-status", "age", "stream-sse-data-encoding", "www-authenticate"}
        assert headers["Access-Control-Allow-Origin"] == "*"
        assert "Vary" not in headers

    def test_the_cors_fields_of_the_upstream_are_replaced(self) -> None:
        headers = CIMultiDict(
            [
                ("access-control-allow-origin", "https://inner"),
                ("Access-Control-Allow-Credentials", "true"),
                ("Access-Control-Allow-Origin", "*"),
                ("Content-Type", "text/plain"),
            ]
        )
        apply(ANY, None, headers)
        assert headers.getall("Access-Control-Allow-Origin") == ["*"]
        assert "Access-Control-Allow-Credentials" not in headers
        assert headers["Content-Type"] == "text/plain"

    def test_an_allowed_origin_may_read_and_the_reply_varies_on_origin(self) -> None:
        headers = CIMultiDict({"Vary": "Accept-Encoding"})
        apply(ONE, "https://app.example", headers)
        assert headers["Access-Control-Allow-Origin"] == "https://app.example"
        assert headers["Access-Control-Allow-Credentials"] == "true"
        assert "x-shard" in listed(headers["Access-Control-Expose-Headers"])
        assert headers["Vary"] == "Accept-Encoding, Origin"

    @pytest.mark.parametrize("origin", [None, "https://evil.example"])
    def test_other_origins_get_only_vary(self, origin: str | None) -> None:
        headers = CIMultiDict({"Access-Control-Allow-Origin": "*"})
        apply(ONE, origin, headers)
        assert list(headers.items()) == [("Vary", "Origin")]

    @pytest.mark.parametrize("vary", ["Origin", "accept, ORIGIN", "*"])
    def test_vary_names_origin_only_once(self, vary: str) -> None:
        headers = CIMultiDict({"Vary": vary})
        apply(ONE, None, headers)
        assert headers["Vary"] == vary

    def test_apply_is_idempotent(self) -> None:
        headers: CIMultiDict[str] = CIMultiDict()
        apply(ONE, "https://app.example", headers)
        first = headers.copy()
        apply(ONE, "https://app.example", headers)
        assert headers == first
