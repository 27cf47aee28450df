"""The example commands that `dev` prints for a new user to paste."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from gateway.commands.dev_auth import LocalRules

_JSON: Final = "-H 'Content-Type: application/json'"


def lines_to_paste(url: str, authority: Path | None = None, rules: LocalRules | None = None) -> list[tuple[str, str]]:
    """Return example commands for a gateway at `url`, each with a comment.

    `authority` is the file of the authority that has signed the gateway's certificate; None without TLS.  `rules` are
    those of `dev --auth`.
    """
    url = url.rstrip("/")
    stream = f"{url}/demo"
    curl = "curl" if authority is None else f"curl --cacert {shlex.quote(str(authority))}"
    reads, writes = (
        ("", "") if rules is None else (f'-H "Authorization: Bearer ${name}" ' for name in ("READER", "WRITER"))
    )
    lines = [
        ("create", f"{curl} -i -X PUT {writes}{_JSON} '{stream}'"),
        ("append", f"{curl} -i -X POST {writes}{_JSON} --data '{{\"hello\":\"world\"}}' '{stream}'"),
        ("read", f"{curl} -i {reads}'{stream}?offset=-1'"),
        ("tail by long-poll: waits for the next append", f"{curl} -i {reads}'{stream}?live=long-poll&offset=now'"),
        ("tail by SSE: the whole stream, then each append", f"{curl} -iN {reads}'{stream}?live=sse&offset=-1'"),
    ]
    if rules is None:
        return lines
    return [
        ("a token that reads every stream", f"READER={rules.reader}"),
        ("a token that allows everything", f"WRITER={rules.writer}"),
        *lines,
        ("without a token: 401", f"{curl} -i '{stream}?offset=-1'"),
        ("a signed URL, for an EventSource", f"{curl} -iN '{rules.signed(url, '/demo')}&live=sse&offset=-1'"),
        (
            "which rule decides, and why",
            f"durable-gateway check {shlex.quote(str(rules.config))} '{stream}' --as $READER",
        ),
    ]


def s2_lines_to_paste(url: str, authority: Path | None = None) -> list[tuple[str, str]]:
    """Return example commands for a gateway in front of an S2 origin, each with a comment."""
    url = url.rstrip("/")
    curl = "curl" if authority is None else f"curl --cacert {shlex.quote(str(authority))}"
    records, basin = f"{url}/v1/streams/demo/records", "-H 's2-basin: demo-basin'"
    config = '{"basin":"demo-basin","config":{"create_stream_on_append":true}}'
    return [
        ("create a basin", f"{curl} -i -X POST {_JSON} --data '{config}' '{url}/v1/basins'"),
        ("append", f'{curl} -i -X POST {basin} {_JSON} --data \'{{"records":[{{"body":"hello"}}]}}\' \'{records}\''),
        ("read", f"{curl} -i {basin} '{records}?seq_num=0'"),
        ("follow by SSE", f"{curl} -iN {basin} -H 'Accept: text/event-stream' '{records}?seq_num=0'"),
        (
            "point S2's SDKs to the gateway",
            f"export S2_ACCESS_TOKEN=any S2_ACCOUNT_ENDPOINT={url} S2_BASIN_ENDPOINT={url}",
        ),
    ]


def trust_lines(authority: Path) -> list[tuple[str, str]]:
    """Return commands that make clients trust the authority in this file, each with a comment."""
    file = shlex.quote(str(authority))
    return [
        ("trust it in Node", f"export NODE_EXTRA_CA_CERTS={file}"),
        ("trust it in Python", f"export SSL_CERT_FILE={file}"),
        ("trust the authority in a browser: import this file under authorities in its settings", str(authority)),
    ]


def print_lines_to_paste(
    url: str, authority: Path | None, rules: LocalRules | None = None, *, is_s2: bool = False
) -> None:
    """Print the example commands, and with TLS those for trusting the certificate."""
    console = Console(soft_wrap=True, highlight=False)
    lines = s2_lines_to_paste(url, authority) if is_s2 else lines_to_paste(url, authority, rules)
    trust = [] if authority is None else trust_lines(authority)
    for comment, line in [*lines, *trust]:
        console.print(Text(f"# {comment}", "dim"))
        console.print(Text(line))
    sys.stdout.flush()
