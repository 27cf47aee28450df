"""The OpenAPI document, and the API checked against it: schemathesis makes valid and invalid requests, and compares the
answers with the document."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config.variables import ADMIN_TOKEN_VARIABLE
from tests.effort import IS_LONG, examples
from tests.ops.admin.conftest import Bench
from tests.served import forked_gateway, served

TOKEN = "a-token-that-nobody-guesses"
SCHEMATHESIS = Path(sysconfig.get_path("scripts")) / "schemathesis"
PATIENCE_S = 120
PLAN = Path(__file__).parents[3] / "config" / "cache-plan.json"
EXAMPLES = examples(2, 20)

CONTRACT = {
    ("get", "/api/overview"),
    ("get", "/api/history"),
    ("get", "/api/origins"),
    ("get", "/api/plan"),
    ("get", "/api/config"),
    ("get", "/api/streams"),
    ("get", "/api/streams/{id}"),
    ("get", "/api/top"),
    ("get", "/api/tails"),
    ("post", "/api/tails"),
    ("get", "/api/counts"),
    ("post", "/api/purge"),
    ("post", "/api/revoke"),
    ("post", "/api/drain"),
    ("get", "/api/log-level"),
    ("put", "/api/log-level"),
    ("post", "/api/reload"),
    ("post", "/api/upgrade"),
    ("get", "/openapi.json"),
    ("get", "/healthz"),
    ("get", "/readyz"),
    ("get", "/metrics"),
}


async def document(bench: Bench) -> Any:
    return await bench.get("/openapi.json")


async def test_every_endpoint_is_documented_and_every_reference_resolves(bench: Bench) -> None:
    shown = await document(bench)
    assert shown["openapi"].startswith("3.1")
    operations = {(method, path) for path, methods in shown["paths"].items() for method in methods}
    assert operations == CONTRACT
    names = [operation["operationId"] for methods in shown["paths"].values() for operation in methods.values()]
    assert len(set(names)) == len(names)

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if "$ref" in value else []
            return own + [one for part in value.values() for one in references(part)]
        return [one for part in value for one in references(part)] if isinstance(value, list) else []

    found = references(shown)
    assert found
    for reference in found:
        assert reference.removeprefix("#/components/schemas/") in shown["components"]["schemas"], reference


async def test_the_fields_of_an_answer_are_described(bench: Bench) -> None:
    schemas = (await document(bench))["components"]["schemas"]
    row = schemas["StreamRow"]["properties"]
    assert row["tail"]["description"] == "The furthest offset that the origin has sent; for S2 a sequence number."
    assert schemas["StreamRow"]["additionalProperties"] is False
    assert "Surrogate-Key" in schemas["PurgeKey"]["properties"]["key"]["description"]


def without_long_texts(value: Any) -> Any:
    """The document without the bounds of long texts that have a pattern.

    To find texts of thousands of characters that match takes schemathesis four fifths of its time; the test of the
    bounds makes them itself.
    """
    if isinstance(value, dict):
        is_long = "pattern" in value and value.get("maxLength", 0) > 300
        return {key: without_long_texts(part) for key, part in value.items() if key != "maxLength" or not is_long}
    return [without_long_texts(part) for part in value] if isinstance(value, list) else value


LONG_TEXTS: dict[str, tuple[str, str, Callable[[str], object] | None, int]] = {
    "CountsQuery.stream": ("GET", "/api/counts?etag=a&stream={text}", None, 1_500),
    "PurgePrefix.prefix": ("POST", "/api/purge", lambda text: {"prefix": text}, 8_192),
    "PurgeStream.stream": ("POST", "/api/purge", lambda text: {"stream": text}, 8_192),
    "StreamsQuery.prefix": ("GET", "/api/streams?prefix={text}", None, 8_192),
    "TailsBody.streams": ("POST", "/api/tails", lambda text: {"streams": [text]}, 8_192),
    "TailsQuery.prefix": ("GET", "/api/tails?prefix={text}", None, 8_192),
}
"""Every field whose bound `without_long_texts` takes away, with a request that has it, and the bound."""


@pytest.mark.parametrize("field", LONG_TEXTS)
async def test_a_long_text_has_its_bound(bench: Bench, field: str) -> None:
    method, path, body, most = LONG_TEXTS[field]
    schema, name = field.split(".")
    described = (await document(bench))["components"]["schemas"][schema]["properties"][name]
    assert described.get("items", described)["maxLength"] == most
    for size, is_refused in ((most, False), (most + 1, True)):
        text = "/" + "a" * (size - 1)
        answer = await bench.ask(method, path.format(text=text), None if body is None else body(text))
        assert (answer.status in (400, 414, 422)) == is_refused, (size, answer.status)


async def test_the_bounds_of_all_long_texts_are_tried(bench: Bench) -> None:
    schemas = (await document(bench))["components"]["schemas"]
    found = {
        f"{schema}.{name}"
        for schema, shown in schemas.items()
        for name, value in shown.get("properties", {}).items()
        if without_long_texts(value) != value
    }
    assert found == LONG_TEXTS.keys()


def test_the_api_conforms_to_its_document(tmp_path: Path) -> None:
    """A drain is not an error, and ends readiness; bodies that are too large are refused."""
    with served(forked_gateway("origin", "--listen", "127.0.0.1:0"), "origin") as origin:
        config = tmp_path / "gateway.toml"
        config.write_text(
            '[server]\nlisten = "127.0.0.1:0"\nadmin = "127.0.0.1:0"\nshutdown_timeout_s = 0.5\n'
            f'[cache.plan]\nfile = "{PLAN}"\n[[route]]\norigin = "{origin["origin"]}"\n'
        )
        environment = {**os.environ, ADMIN_TOKEN_VARIABLE: TOKEN}
        command = forked_gateway("serve", "--config", str(config))
        with served(command, "gateway", "admin", environment=environment) as urls:
            shown = {"Authorization": f"Bearer {TOKEN}"}
            httpx.put(urls["gateway"] + "/a/stream", content=b"bytes", headers={"Content-Type": "text/plain"})
            (row,) = httpx.get(urls["admin"] + "/api/streams", headers=shown).json()["streams"]
            settings = tmp_path / "schemathesis.toml"
            described = tmp_path / "openapi.json"
            told = httpx.get(urls["admin"] + "/openapi.json", headers=shown).json()
            described.write_text(json.dumps(told if IS_LONG else without_long_texts(told)))
            settings.write_text(
                "[checks.negative_data_rejection]\n"
                'expected-statuses = ["400", "401", "403", "404", "405", "413", "415", "422"]\n'
                '[[operations]]\ninclude-path = "/readyz"\n'
                'checks.not_a_server_error.expected-statuses = ["2xx", "405", "503"]\n'
                f'[[operations]]\ninclude-path = "/api/streams/{{id}}"\nparameters = {{ id = "{row["id"]}" }}\n'
            )
            run = subprocess.run(
                [
                    str(SCHEMATHESIS),
                    f"--config-file={settings}",
                    "run",
                    str(described),
                    f"--url={urls['admin']}",
                    "--checks=all",
                    f"--max-examples={EXAMPLES}",
                    "--seed=7",
                    "--generation-database=none",
                    "--no-color",
                    f"--header=Authorization: Bearer {TOKEN}",
                ],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
    said = "\n".join(line[:300] for line in run.stdout.splitlines())
    assert run.returncode == 0, said + run.stderr
    assert re.search(rf"Tested: +{len(CONTRACT)}\b", said), said
