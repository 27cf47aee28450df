"""The options of the pipeline's commands, and the texts that some of them take."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from gateway.config.variables import ADMIN_TOKEN_VARIABLE
from gateway.pipeline.events import AUTHORIZATION_VARIABLE
from gateway.pipeline.session import DEFAULT_MASTER

MIN_SPAN: Final = "24h"
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def _named(folder: str) -> str:
    if not folder:
        raise typer.BadParameter("expected a folder, or the URL of an object store")
    return folder


Lines = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Files, folders or globs of access-log lines, or the URL of the stream that a gateway logs to.",
    ),
]
SourceOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="For a log in a stream: an option of the Spark source, such as catalogue, the URL of the gateway's "
        f"admin port; may be repeated.  The Authorization header comes from ${AUTHORIZATION_VARIABLE}, the admin "
        f"port's token from ${ADMIN_TOKEN_VARIABLE}.",
    ),
]
LakeUrl = Annotated[
    str,
    typer.Option(
        "--lake",
        "--in",
        metavar="FOLDER",
        callback=_named,
        help="The lake: a folder, or the URL of a prefix in an object store, such as s3://bucket/lake.",
    ),
]
Into = Annotated[
    str,
    typer.Option(
        "--into",
        metavar="FOLDER",
        callback=_named,
        help="The Delta table: a folder, or a URL such as s3://b/orders.",
    ),
]
OneTable = Annotated[
    str | None,
    typer.Option(
        "--table", metavar="FOLDER", help="A table of `pipeline table`, a folder or a URL, in place of a lake."
    ),
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", show_default=DEFAULT_MASTER, help="Spark's master, such as local[4]."),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; may be repeated.")
]
Follow = Annotated[
    bool, typer.Option("--follow", help="Keep reading new lines, and update silver and gold, until SIGINT or SIGTERM.")
]
Again = Annotated[
    bool,
    typer.Option(
        "--again",
        help="Read the files from their beginnings, also lines that were rejected as late.  Lines that have an id are "
        "not added twice.",
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        "--rate",
        metavar="R",
        min=1e-4,
        max=1,
        show_default="chosen to bound the work",
        help="Share of blocks and tapes to sample.",
    ),
]
Target = Annotated[
    float,
    typer.Option("--target", metavar="RATIO", min=0, max=1, help="Hit ratio that the memory should reach."),
]
Policy = Annotated[
    str, typer.Option("--policy", metavar="NAME", help="`limits.eviction` of the gateway that applies the plan.")
]
MinSpan = Annotated[
    str,
    typer.Option(
        "--min-span",
        metavar="TIME",
        help="Shortest time that a log should cover, such as 90m, 24h or 7d.  The plan and the report of a shorter one "
        "are marked, and a gateway does not take the memory of such a plan unless told to.",
    ),
]
PlanFile = Annotated[Path, typer.Option("--plan", "--out", metavar="FILE", help="File to write the plan to.")]
Curves = Annotated[
    list[str] | None,
    typer.Option(
        "--curve",
        metavar="POLICY",
        show_default="the plan's policy",
        help="A policy whose curve is drawn; may be repeated.  The numbers below have all of them.",
    ),
]
Title = Annotated[str | None, typer.Option("--title", metavar="TEXT", help="The report's heading.")]


def seconds(text: str, flag: str) -> float:
    """The seconds of a time such as `90m`."""
    with suppress(KeyError, ValueError):
        seconds = float(text[:-1]) * _UNITS_S[text[-1:]]
        if 0 <= seconds < float("inf"):
            return seconds
    raise typer.BadParameter("expected a number and a unit: s, m, h or d, such as 24h", param_hint=flag)


def settings(texts: list[str], flag: str, wanted: str) -> dict[str, str]:
    """The settings in texts such as `name=value`.  Raises BadParameter."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            # The text itself is not shown: it may be a secret.
            raise typer.BadParameter(f"expected {wanted}", param_hint=flag)
        found[key] = value
    return found
