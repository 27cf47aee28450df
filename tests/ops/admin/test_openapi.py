"""The OpenAPI document, and the API checked against it: schemathesis makes valid and invalid requests, and compares the
answers with the document."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import httpx

from gateway.config.variables import ADMIN_TOKEN_VARIABLE
from tests.effort import examples
from tests.ops.admin.conftest import Bench
from tests.served import durable_gateway, served

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
    ("post", "/api/drain"),
    ("get", "/api/log-level"),
    ("put", "/api/log-level"),
    ("post", "/api/reload"),
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
    assert row["tail"]["description"] == "The furthest offset that the origin has sent; of S2 a sequence number."
    assert schemas["StreamRow"]["additionalProperties"] is False
    assert "Surrogate-Key" in schemas["PurgeKey"]["properties"]["key"]["description"]


def test_the_api_conforms_to_its_document(tmp_path: Path) -> None:
    """A drain is not an error, and ends readiness; bodies that are too large are refused."""
    with served(durable_gateway("origin", "--listen", "127.0.0.1:0"), "origin") as origin:
        config = tmp_path / "gateway.toml"
        config.write_text(
            '[server]\nlisten = "127.0.0.1:0"\nadmin = "127.0.0.1:0"\nshutdown_timeout_s = 0.5\n'
            f'[cache.plan]\nfile = "{PLAN}"\n[[route]]\norigin = "{origin["origin"]}"\n'
        )
        environment = {**os.environ, ADMIN_TOKEN_VARIABLE: TOKEN}
        command = durable_gateway("serve", "--config", str(config))
        with served(command, "gateway", "admin", environment=environment) as urls:
            shown = {"Authorization": f"Bearer {TOKEN}"}
            httpx.put(urls["gateway"] + "/a/stream", content=b"bytes", headers={"Content-Type": "text/plain"})
            (row,) = httpx.get(urls["admin"] + "/api/streams", headers=shown).json()["streams"]
            settings = tmp_path / "schemathesis.toml"
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
                    urls["admin"] + "/openapi.json",
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
    told = "\n".join(line[:300] for line in run.stdout.splitlines())
    assert run.returncode == 0, told + run.stderr
    # All operations except the document itself, which it has read by then.
    assert re.search(rf"Tested: +{len(CONTRACT) - 1}\b", told), told
