"""What `dev` has a new user try: lines to paste."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

_JSON: Final = "-H 'Content-Type: application/json'"


def lines_to_paste(url: str, authority: Path | None = None) -> list[tuple[str, str]]:
    """What a new user may try against a gateway at `url`, whose certificate an `authority` has signed: a comment and a
    command each."""
    stream = f"{url.rstrip('/')}/demo"
    curl = "curl" if authority is None else f"curl --cacert {shlex.quote(str(authority))}"
    return [
        ("create", f"{curl} -i -X PUT {_JSON} '{stream}'"),
        (
            "append",
            f"{curl} -i -X POST -H 'Content-Type: application/json' --data '{{\"hello\":\"world\"}}' '{stream}'",
        ),
        ("read", f"{curl} -i '{stream}?offset=-1'"),
        ("tail by long-poll: waits for the next append", f"{curl} -i '{stream}?live=long-poll&offset=now'"),
        ("tail by SSE: everything, then what comes", f"{curl} -iN '{stream}?live=sse&offset=-1'"),
    ]


def ways_to_trust(authority: Path) -> list[tuple[str, str]]:
    """How clients come to believe a gateway whose certificate is signed by an authority of one's own."""
    file = shlex.quote(str(authority))
    return [
        ("trust it in Node", f"export NODE_EXTRA_CA_CERTS={file}"),
        ("trust it in Python", f"export SSL_CERT_FILE={file}"),
        ("trust it in a browser: import this file where its settings have authorities", str(authority)),
    ]


def print_lines_to_paste(url: str, authority: Path | None) -> None:
    """Say what there is to try."""
    console = Console(soft_wrap=True, highlight=False)
    trust = [] if authority is None else ways_to_trust(authority)
    for comment, line in [*lines_to_paste(url, authority), *trust]:
        console.print(Text(f"# {comment}", "dim"))
        console.print(Text(line))
    sys.stdout.flush()
