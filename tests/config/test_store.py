"""The section `store`."""

import pytest
from pydantic import SecretStr, ValidationError

from gateway.config.gateway import GatewayConfig

ORIGIN = "http://127.0.0.1:4438"


def test_the_workers_divide_the_bytes_on_disk() -> None:
    assert GatewayConfig.for_origin(ORIGIN, workers=4, store={"path": "/s"}).worker_count == 4
    store = {"path": "/s", "max_bytes": "6MiB", "segment_bytes": "1MiB"}
    assert GatewayConfig.for_origin(ORIGIN, workers=3, store=store).worker_count == 3
    with pytest.raises(ValidationError, match=r"is divided among 4 workers, each of which needs 2 MiB"):
        GatewayConfig.for_origin(ORIGIN, workers=4, store=store)
    assert GatewayConfig.for_origin(ORIGIN, workers=4, store={**store, "path": ""}).worker_count == 4
    # By itself, it starts no worker with less than 256 MiB.
    assert GatewayConfig.for_origin(ORIGIN, cache_bytes="4GiB", store=store).worker_count == 1


def test_a_store_is_refused_in_a_fleet() -> None:
    members = [{"name": "a", "url": "http://a:1"}, {"name": "b", "url": "http://b:1"}]
    fleet = {"name": "a", "listen": "127.0.0.1:0", "secret": SecretStr("x" * 40), "members": members}
    assert GatewayConfig.for_origin(ORIGIN, workers=1, fleet=fleet).worker_count == 1
    with pytest.raises(ValidationError, match=r"cannot be set together with a fleet"):
        GatewayConfig.for_origin(ORIGIN, workers=1, fleet=fleet, store={"path": "/s"})


def test_a_store_has_two_segments() -> None:
    with pytest.raises(ValidationError, match="is more than half of max_bytes"):
        GatewayConfig.for_origin(ORIGIN, store={"max_bytes": "100MiB", "segment_bytes": "51MiB"})
