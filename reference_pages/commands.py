"""The text of `--help` for every command, as a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from gateway.cli import PROGRAM
from gateway.cli.program import app
from reference_pages.part import table


def commands() -> str:
    """A section for each command: usage, what it does, arguments and options."""
    return "\n".join(_sections(PROGRAM, typer.main.get_command(app)))


def _sections(name: str, command: Any) -> Iterator[str]:
    for short, inner in getattr(command, "commands", {}).items():
        path = f"{name} {short}"
        if hasattr(inner, "commands"):
            yield from _sections(path, inner)
        else:
            yield _section(path, inner)


def _section(path: str, command: Any) -> str:
    takes = [parameter for parameter in command.params if not parameter.hidden]
    rows = [(_name(parameter), _default(parameter), " ".join((parameter.help or "").split())) for parameter in takes]
    arguments = "".join(
        (f" {shown}" if parameter.required else f" [{shown}]") + ("..." if parameter.nargs < 0 else "")
        for parameter in takes
        if not parameter.opts[0].startswith("-")
        for shown in [_metavar(parameter)]
    )
    text = f"### {path.removeprefix(PROGRAM + ' ')}\n\n```text\n{path} [OPTIONS]{arguments}\n```\n\n"
    text += " ".join((command.help or "").split()) + "\n"
    if rows:
        text += "\n" + table(("argument or option", "default", "meaning"), rows)
    return text


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _name(parameter: Any) -> str:
    if not parameter.opts[0].startswith("-"):
        return f"`{_metavar(parameter)}`"
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    takes = "" if isinstance(parameter.default, bool) or not parameter.metavar else f" {parameter.metavar}"
    return f"`{names}{takes}`"


def _default(parameter: Any) -> str:
    shown = getattr(parameter, "show_default", None)
    if parameter.required:
        return "required"
    if isinstance(shown, str):
        return f"`{shown}`" if " " not in shown else shown
    if parameter.default is None or isinstance(parameter.default, bool | list | tuple):
        return ""
    value = parameter.default() if callable(parameter.default) else parameter.default
    return f"`{value}`" if value != "" else ""
