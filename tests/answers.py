"""Answers to a client of streams, as tests hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from multidict import CIMultiDict, MultiMapping


@dataclass(frozen=True)
class Answer:
    """One answer; None as status when the connection broke before its end."""

    status: int | None
    headers: MultiMapping[str]
    body: bytes = b""

    @property
    def end(self) -> str | None:
        return self.headers.get("Stream-Next-Offset")

    @property
    def is_up_to_date(self) -> bool:
        return self.headers.get("Stream-Up-To-Date") == "true"

    @property
    def is_closed(self) -> bool:
        return self.headers.get("Stream-Closed") == "true"


_NONE: Final[CIMultiDict[Any]] = CIMultiDict()
BROKEN: Final = Answer(None, _NONE)
