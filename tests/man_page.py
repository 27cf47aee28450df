"""The manual page `docs/durable-gateway.1`, drawn from the same commands as `--help`; `make man` writes it.

The page is man(7) roff.  A name of a command or an option is bold, what stands for a value is as the help has it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import typer

from gateway import __version__
from gateway.cli import PROGRAM
from gateway.cli.program import app
from gateway.config.variables import ADMIN_TOKEN_VARIABLE, ENV_PREFIX

FILE: Final = Path(__file__).parents[1] / "docs" / "durable-gateway.1"
_STATUSES: Final[Mapping[str, str]] = {
    "0": "Done, or drained after a signal.",
    "1": "It could not run (a port is taken, an origin does not answer) or was cut short.",
    "2": "The command line or the configuration is wrong.",
}
_VARIABLES: Final[Mapping[str, str]] = {
    f"{ENV_PREFIX}SECTION__KEY": "A value of the configuration, over that of the file: "
    f"{ENV_PREFIX}SERVER__LISTEN, {ENV_PREFIX}ROUTE__NAME__ORIGIN.",
    ADMIN_TOKEN_VARIABLE: "The token that the admin port asks for, and that commands show it.",
    "NO_COLOR": "Print without colours.",
}


def man_page() -> str:
    """The whole page."""
    root = typer.main.get_command(app)
    context = _context(root, PROGRAM)
    lines = [
        f'.TH DURABLE\\-GATEWAY 1 "" "durable\\-gateway {__version__}" "User Commands"',
        ".SH NAME",
        f"{_text(PROGRAM)} \\- {_text(_summary(root))}",
        ".SH SYNOPSIS",
        f".B {_text(PROGRAM)}",
        "[OPTIONS] COMMAND [ARGS]...",
        ".SH DESCRIPTION",
        *_paragraphs(root.help or ""),
        ".SH OPTIONS",
        *_parameters(root, context, with_help=True),
        ".SH COMMANDS",
        *(line for command, its_context in _commands(root, context) for line in _command(command, its_context)),
        ".SH EXIT STATUS",
        *_terms(_STATUSES),
        ".SH ENVIRONMENT",
        *_terms(_VARIABLES),
    ]
    return "\n".join(lines) + "\n"


def _commands(group: Any, context: Any) -> Iterator[tuple[Any, Any]]:
    """Every command that is no group, with its context."""
    for name, command in group.commands.items():
        its_context = _context(command, name, context)
        if hasattr(command, "commands"):
            yield from _commands(command, its_context)
        else:
            yield command, its_context


def _context(command: Any, name: str, parent: Any = None) -> Any:
    return command.context_class(command, info_name=name, parent=parent, **command.context_settings)


def _command(command: Any, context: Any) -> list[str]:
    path = context.command_path.removeprefix(f"{PROGRAM} ")
    usage = " ".join(command.collect_usage_pieces(context))
    return [f".SS {_text(path)} {_text(usage)}", *_paragraphs(command.help or ""), *_parameters(command, context)]


def _parameters(command: Any, context: Any, *, with_help: bool = False) -> list[str]:
    found: list[str] = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and (with_help or parameter.name != "help"):
            found += _terms({record[0]: record[1]})
    return found


def _terms(terms: Mapping[str, str]) -> list[str]:
    return [line for term, meaning in terms.items() for line in (".TP", f".B {_text(term)}", _text(meaning))]


def _paragraphs(text: str) -> list[str]:
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text))
    return [line for one in paragraphs for line in (".PP", _text(one))]


def _summary(command: Any) -> str:
    return (command.help or "").partition("\n")[0].rstrip(".")


def _text(text: str) -> str:
    """Text on one line that roff takes as it is."""
    shown = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-").replace("…", "...").replace('"', "\\(dq")
    return f"\\&{shown}" if shown.startswith((".", "'")) else shown


if __name__ == "__main__":
    FILE.write_text(man_page(), encoding="utf-8")
