"""One S2 stream as its clients see it: the tail, a hash chained over the records, and the fencing token.

The hash stands for the records: two streams with the same tail and the same hash have the same records.  So a state is
small, and a search can remember many.  The stream is never trimmed or deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce

EMPTY = b""
"""The hash over no records."""


def chained(digest: bytes, records: Iterable[bytes]) -> bytes:
    """The hash over the records behind `digest` and these."""
    return reduce(lambda so_far, record: hashlib.blake2b(so_far + record, digest_size=16).digest(), records, digest)


@dataclass(frozen=True, slots=True)
class StreamState:
    """The state of a stream."""

    tail: int = 0
    digest: bytes = EMPTY
    fencing_token: str = ""

    def __str__(self) -> str:
        return f"tail {self.tail}, hash {self.digest.hex()[:6]}, fencing token {self.fencing_token!r}"


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The records have these numbers; `end` is exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Unmatched:
    """412: the stream's tail was `tail`."""

    tail: int


@dataclass(frozen=True, slots=True)
class Fenced:
    """412: the stream's fencing token was `token`."""

    token: str


AppendOutcome = Acknowledged | Unmatched | Fenced | None
"""None: no outcome was seen."""


@dataclass(frozen=True, slots=True)
class Append:
    """An append of records, each a hash of its content."""

    records: tuple[bytes, ...]
    match_seq_num: int | None = None
    fencing_token: str | None = None
    sets_token: str | None = None
    """The token that a command among the records sets."""
    outcome: AppendOutcome = None

    def step(self, state: StreamState) -> StreamState | None:
        is_fenced = self.fencing_token not in (None, state.fencing_token)
        is_unmatched = self.match_seq_num not in (None, state.tail)
        match self.outcome:
            case Fenced(token):
                return state if is_fenced and token == state.fencing_token else None
            case Unmatched(tail):
                return state if not is_fenced and is_unmatched and tail == state.tail else None
            case Acknowledged(start, end) if (start, end) != (state.tail, state.tail + len(self.records)):
                return None
        if is_fenced or is_unmatched:
            return None
        token = state.fencing_token if self.sets_token is None else self.sets_token
        return StreamState(state.tail + len(self.records), chained(state.digest, self.records), token)

    def seen(self, outcome: AppendOutcome) -> Append:
        """The same append with this outcome."""
        return replace(self, outcome=outcome)

    def __str__(self) -> str:
        conditions = [f"if the tail is {self.match_seq_num}"] if self.match_seq_num is not None else []
        conditions += [f"if the token is {self.fencing_token!r}"] if self.fencing_token is not None else []
        sets = [f"set the token to {self.sets_token!r}"] if self.sets_token is not None else []
        return ", ".join([f"append {len(self.records)}", *conditions, *sets]) + f" -> {self.outcome}"


@dataclass(frozen=True, slots=True)
class TailIs:
    """A read or a check that saw the tail, and the hash over all records before it if it saw records."""

    tail: int
    digest: bytes | None = None

    def step(self, state: StreamState) -> StreamState | None:
        return state if self.tail == state.tail and self.digest in (None, state.digest) else None

    def __str__(self) -> str:
        digest = f", hash {self.digest.hex()[:6]}" if self.digest is not None else ""
        return f"the tail is {self.tail}{digest}"


@dataclass(frozen=True, slots=True)
class TailIsBehind:
    """A read that saw records up to `end`, and not whether there were more."""

    end: int

    def step(self, state: StreamState) -> StreamState | None:
        return state if state.tail >= self.end else None

    def __str__(self) -> str:
        return f"the tail is at least {self.end}"


Action = Append | TailIs | TailIsBehind
