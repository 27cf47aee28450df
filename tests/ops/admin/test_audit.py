"""The audit log: changes, refused requests, and the bound on its lines."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gateway.aio.clock import ManualClock
from gateway.config.file import load_config
from gateway.config.variables import ADMIN_TOKEN_VARIABLE
from gateway.ops.admin.audit import Audit
from gateway.ops.admin.endpoint import Refused
from gateway.origin.app import RunningOrigin
from gateway.telemetry.audit import REFUSALS_PER_WINDOW, WINDOW_S
from tests.ops.admin.conftest import Start

TOKEN = "a-token-that-nobody-guesses"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "gateway.admin.audit"]


async def test_a_wrong_token_and_a_missing_one_get_different_errors(
    start: Start, origin: RunningOrigin, caplog: pytest.LogCaptureFixture
) -> None:
    bench = await start(origin.url, environ={ADMIN_TOKEN_VARIABLE: TOKEN})
    missing = await bench.ask("GET", "/api/overview")
    wrong = await bench.ask("POST", "/api/drain", {}, Authorization="Bearer guessed")
    assert missing.headers["WWW-Authenticate"] == "Bearer"
    assert wrong.headers["WWW-Authenticate"] == 'Bearer error="invalid_token"'
    assert missing.body["error"] != wrong.body["error"]
    assert lines(caplog) == [
        "GET /api/overview by 127.0.0.1: 401: a token is needed: Authorization: Bearer <token>",
        "POST /api/drain by 127.0.0.1: 401: the token is not this gateway's",
    ]
    assert "guessed" not in caplog.text


async def test_a_reload_that_is_refused_leaves_a_line(
    start: Start, origin: RunningOrigin, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(f'[server]\nlisten = "127.0.0.1:0"\nadmin = "127.0.0.1:0"\n[[route]]\norigin = "{origin.url}"\n')
    bench = await start(config=load_config(file).config, load=lambda: load_config(file).config)
    file.write_text("nonsense = 1\n")
    assert (await bench.ask("POST", "/api/reload", {})).status == 422
    (line,) = lines(caplog)
    assert line.startswith(f"POST /api/reload by 127.0.0.1: 422: {file}:1: nonsense: unknown key")


def test_refusal_lines_are_bounded_and_omitted_ones_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    audit = Audit(clock)
    for _ in range(REFUSALS_PER_WINDOW + 5):
        audit.refused("GET", f"/{'x' * 1_000}", "192.0.2.1", Refused(401, "no"))
    assert len(lines(caplog)) == REFUSALS_PER_WINDOW
    assert max(map(len, lines(caplog))) < 300
    audit.done("POST", "/api/drain", "192.0.2.1", 202, "within 30 s")
    assert lines(caplog)[-1] == "POST /api/drain by 192.0.2.1: 202: within 30 s"
    clock.advance(WINDOW_S)
    with caplog.at_level(logging.INFO):
        audit.refused("GET", "/", "192.0.2.1", Refused(401, "no"))
    assert lines(caplog)[-2:] == ["5 more refusals since were not written", "GET / by 192.0.2.1: 401: no"]
