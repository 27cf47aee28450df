"""The names of the kinds of requests."""

from __future__ import annotations

from gateway.protocol.mode import Mode


def test_the_modes_are_the_ones_dashboards_are_written_against() -> None:
    assert [mode.value for mode in Mode] == [
        "catchup",
        "longpoll",
        "sse",
        "head",
        "create",
        "append",
        "delete",
        "other",
    ]
