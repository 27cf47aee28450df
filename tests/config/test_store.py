"""The section `store`: one process alone has the folder."""

import pytest
from pydantic import SecretStr, ValidationError

from gateway.config.gateway import GatewayConfig

ORIGIN = "http://127.0.0.1:4438"


def test_a_gateway_with_a_store_has_one_process() -> None:
    config = GatewayConfig.for_origin(ORIGIN, cache_bytes="4GiB", store={"path": "/s"})
    assert (config.server.workers, config.worker_count) == ("auto", 1)
    assert GatewayConfig.for_origin(ORIGIN, workers=1, store={"path": "/s"}).worker_count == 1
    with pytest.raises(ValidationError, match=r"is for one process: set server.workers to 1"):
        GatewayConfig.for_origin(ORIGIN, workers=2, store={"path": "/s"})
    members = [{"name": "a", "url": "http://a:1"}, {"name": "b", "url": "http://b:1"}]
    fleet = {"name": "a", "listen": "127.0.0.1:0", "secret": SecretStr("x" * 40), "members": members}
    assert GatewayConfig.for_origin(ORIGIN, workers=1, fleet=fleet).worker_count == 1
    with pytest.raises(ValidationError, match=r"cannot be set together with a fleet"):
        GatewayConfig.for_origin(ORIGIN, workers=1, fleet=fleet, store={"path": "/s"})
    assert GatewayConfig.for_origin(ORIGIN, workers=2, store={"max_bytes": "8GiB"}).worker_count == 2


def test_a_store_has_two_segments() -> None:
    with pytest.raises(ValidationError, match="is more than half of max_bytes"):
        GatewayConfig.for_origin(ORIGIN, store={"max_bytes": "100MiB", "segment_bytes": "51MiB"})
