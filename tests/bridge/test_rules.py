"""Bridged routes with rules who may."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.bridge.clients import Bridged
from tests.scenarios.credentials import bearer, jwt_rule


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, object]:
    return {"auth": [jwt_rule(tmp_path)], "credentials": "shared"}


@pytest.mark.parametrize("root", ["", "a/", "v1/stream/"])
async def test_no_name_of_a_stream_passes_the_rules(bridged: Bridged, root: str) -> None:
    writer = replace(bridged.reader, token=bearer(streams=["* /**"])["Authorization"].removeprefix("Bearer "))
    json = {"Content_Type": "application/json"}
    for stream in (f"{root}__ds/subscriptions/x/ack", f"{root}__ds/jwks.json"):
        assert (await writer.send("PUT", stream, b'[{"secret":1}]', **json)).status == 201
        for method, body in (("GET", None), ("POST", b'[{"forged":1}]'), ("PUT", b"[]"), ("DELETE", None)):
            refused = await bridged.reader.send(method, stream, body, **json)
            assert refused.status == 401, (method, stream)
            assert b"secret" not in refused.body
        assert (await writer.send("GET", stream)).json == [{"secret": 1}]
