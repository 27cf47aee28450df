"""A Dockerfile taken apart, as far as this project's needs: stages, their instructions, and what variables stand for.

Instructions come as they are written, with continued lines joined; what is not understood is an error and not a guess.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_KNOWN = frozenset(
    {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "STOPSIGNAL", "USER"}
    | {"WORKDIR"}
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its name in capitals, and the rest of it."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The JSON list that the text is, without the flags before it; ValueError where it is none."""
        found = json.loads(self.text[self.text.index("[") :])
        if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
            raise ValueError(f"{self.name} is no list of words")
        return found

    def flag(self, name: str) -> str | None:
        """The value of `--name=value` before anything else."""
        for word in self.text.split():
            if not word.startswith("--"):
                return None
            if word.startswith(f"--{name}="):
                return word.partition("=")[2]
        return None


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: the image it starts from, its name, and what it does."""

    base: str
    name: str | None
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, name: str) -> list[Instruction]:
        return [one for one in self.instructions if one.name == name]

    def last(self, name: str) -> Instruction:
        return self.all(name)[-1]


def read(path: Path) -> tuple[dict[str, str], list[Stage]]:
    """The arguments before the first stage with their defaults, and the stages.  ValueError for what is not known."""
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for one in _instructions(path.read_text(encoding="utf-8")):
        if one.name == "FROM":
            match one.text.split():
                case [base]:
                    stages.append(Stage(expanded(base, arguments), None))
                case [base, "AS", name]:
                    stages.append(Stage(expanded(base, arguments), name))
                case _:
                    raise ValueError(f"FROM {one.text}")
        elif stages:
            stages[-1].instructions.append(one)
        elif one.name == "ARG":
            arguments |= assignments(one.text)
        else:
            raise ValueError(f"{one.name} before the first FROM")
    return arguments, stages


def _instructions(text: str) -> Iterator[Instruction]:
    joined = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            continue
        if line.endswith("\\"):
            joined += line[:-1]
            continue
        joined += line
        if joined.strip():
            name, _, rest = joined.strip().partition(" ")
            if name not in _KNOWN:
                raise ValueError(f"unknown instruction {name}")
            yield Instruction(name, rest.strip())
        joined = ""
    if joined:
        raise ValueError("ends in a continued line")


def assignments(text: str) -> dict[str, str]:
    """The names and values of an ARG or ENV; an ARG without a default has none."""
    pairs = (word.partition("=") for word in shlex.split(text))
    return {name: value for name, _, value in pairs}


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """The text with `$NAME` and `${NAME}` replaced; KeyError for a name that stands for nothing."""
    return _VARIABLE.sub(lambda match: variables[match[1] or match[2]], text)
