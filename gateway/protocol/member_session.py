"""How two members of a fleet prove to each other, on each connection, that they know the fleet's secret.

The member that connects (the first member) sends a greeting: its name and a random number.  The other member answers
with its own name, its own random number, and a proof.  The proof covers all of these values, and needs the secret.  If
the proof is invalid or comes from an unexpected member, the first member closes the connection.  Until then, it has
sent nothing but the greeting.

A member may have several workers.  A greeting may therefore also have the number of the worker that is to answer
(`NAME/WORKER`).  Each answer has the number of the worker that has answered.

From the names, the random numbers and the secret, both members compute two keys, one for each direction.  All further
bytes are sent in records: a length, an authentication code (HMAC-SHA256), and at most `MOST_RECORD_BYTES` of data.  The
code also covers the record's number.  A record that is forged, changed, repeated, moved or copied from another
connection therefore ends the connection.  The first member sends an empty record at once, which is its proof.

Nothing is encrypted.  An attacker who can read the connection can read the data.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Final, NamedTuple

VERSION: Final = 4
"""The version of everything that members send each other.  Raise it if a field between members or between workers
(`gateway.protocol.worker_headers`) changes its form or meaning.  Members with different versions share nothing."""
_MOST_GREETING_BYTES: Final = 256
MOST_RECORD_BYTES: Final = 1 << 16
_BEGINNING: Final = b"gateway-fleet "
_GREETING: Final = re.compile(
    rb"gateway-fleet (\d{1,6}) ([^\s/]{1,63})(?:/(\d{1,3}))? ([0-9a-f]{32})(?: ([0-9a-f]{64}))?\n"
)
"""Version, name, worker, random number, proof."""
_LENGTH_BYTES: Final = 4
_CODE_BYTES: Final = 32
_BLOCK_BYTES: Final = 64
"""The size of a block of SHA-256."""
_HEAD_BYTES: Final = _LENGTH_BYTES + _CODE_BYTES

ANOTHER_SERVER: Final = "another server answers at its URL"
ANOTHER_SECRET: Final = "the secret differs"
ANOTHER_VERSION: Final = "its version of the gateway shares no streams with this one"


def may_be_greeting(data: bytes) -> bool:
    """Return whether the first bytes of a connection may be the beginning of a greeting, or of the answer to a
    greeting."""
    size = min(len(data), len(_BEGINNING))
    return data[:size] == _BEGINNING[:size] and len(data) < _MOST_GREETING_BYTES


def wanted_worker(greeting: bytes) -> int | None:
    """Return the number of the worker that is to answer a greeting; None if any worker may answer, or if the bytes are
    no greeting."""
    found = _GREETING.fullmatch(greeting)
    return None if found is None or found[3] is None else int(found[3])


class NotProved(Exception):
    """The other end has not proved to be the expected member.  The text is the reason.

    `differs` means that the other end is a member, but has another name, version, secret or list of members than
    expected.
    """

    def __init__(self, reason: str, *, differs: bool = True) -> None:
        super().__init__(reason)
        self.differs = differs


class _Codes:
    """The authentication codes of one direction: HMAC-SHA256 over the record's number and data.

    The two hashes of HMAC are prepared once for each key.  `hmac.digest` would prepare them for each record, at ten
    times the cost.
    """

    __slots__ = ("_inner", "_number", "_outer")

    def __init__(self, key: bytes) -> None:
        block = int.from_bytes(key.ljust(_BLOCK_BYTES, b"\0"), "big")
        self._inner, self._outer = (
            hashlib.sha256((block ^ int.from_bytes(bytes([pad]) * _BLOCK_BYTES, "big")).to_bytes(_BLOCK_BYTES, "big"))
            for pad in (0x36, 0x5C)
        )
        self._number = 0

    def _code(self, data: bytes) -> bytes:
        """Return the code of the next record."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(self._number.to_bytes(8, "big"))
        inner.update(data)
        outer.update(inner.digest())
        self._number += 1
        return outer.digest()


class Sealer(_Codes):
    """Makes the records of one direction."""

    __slots__ = ()

    def sealed(self, data: bytes) -> bytes:
        """Return the records that contain `data`."""
        if len(data) <= MOST_RECORD_BYTES:
            return self._record(data)
        starts = range(0, len(data), MOST_RECORD_BYTES)
        return b"".join([self._record(data[start : start + MOST_RECORD_BYTES]) for start in starts])

    def _record(self, data: bytes) -> bytes:
        return len(data).to_bytes(_LENGTH_BYTES, "big") + self._code(data) + data


class Opener(_Codes):
    """Checks the records of one direction."""

    __slots__ = ("_unread",)

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self._unread = b""

    @property
    def has_opened(self) -> bool:
        """Whether a valid record has arrived."""
        return self._number > 0

    def opened(self, data: bytes) -> bytes:
        """Return the data of the records that are complete now.  Raises ValueError for an invalid record."""
        unread = self._unread + data if self._unread else data
        start, pieces = 0, []
        while len(unread) - start >= _HEAD_BYTES:
            length = int.from_bytes(unread[start : start + _LENGTH_BYTES], "big")
            if length > MOST_RECORD_BYTES:
                raise ValueError("a record is too long")
            end = start + _HEAD_BYTES + length
            if end > len(unread):
                break
            piece = unread[start + _HEAD_BYTES : end]
            if not hmac.compare_digest(self._code(piece), unread[start + _LENGTH_BYTES : start + _HEAD_BYTES]):
                raise ValueError("a record is not of this member")
            pieces.append(piece)
            start = end
        self._unread = unread[start:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class Session(NamedTuple):
    """One connection between two members, from the view of one of them."""

    peer: str
    """The name of the other member."""
    sealer: Sealer
    opener: Opener
    worker: int
    """The number of the worker that has answered the greeting."""


class MemberKey:
    """One member's name, and the fleet's secret."""

    def __init__(self, name: str, secret: bytes) -> None:
        self.name: Final = name
        self._key = hmac.digest(hashlib.sha256(secret).digest(), b"members", "sha256")

    def __repr__(self) -> str:
        return f"<MemberKey of {self.name}>"

    def greeting(self, worker: int | None = None) -> bytes:
        """Return the first bytes of the member that connects.  `worker` is the worker that is to answer; None for any
        worker."""
        name = self.name if worker is None else f"{self.name}/{worker}"
        return b"gateway-fleet %d %b %b\n" % (VERSION, name.encode(), secrets.token_hex(16).encode())

    def answered(self, greeting: bytes, worker: int = 0) -> tuple[bytes, Session] | None:
        """Return this worker's answer to a member's greeting, and the session.  Return None if the bytes are no
        greeting."""
        found = _GREETING.fullmatch(greeting)
        if found is None or found[5] is not None:
            return None
        own = self.greeting(worker)
        shared = greeting + own
        to_asker, to_owner = self._keys(shared)
        answer = own[:-1] + b" " + self._code(b"proof", shared).hex().encode() + b"\n"
        return answer, Session(found[2].decode("ascii", "replace"), Sealer(to_asker), Opener(to_owner), worker)

    def session(self, greeting: bytes, answer: bytes, expected: str) -> Session:
        """Return the session that begins with this member's greeting and the other member's answer.

        `expected` is the other member's name.  Raises NotProved."""
        found = _GREETING.fullmatch(answer)
        if found is None or found[5] is None:
            raise NotProved(ANOTHER_SERVER, differs=False)
        if int(found[1]) != VERSION:
            raise NotProved(ANOTHER_VERSION)
        shared = greeting + answer[: found.start(5) - 1] + b"\n"
        if not hmac.compare_digest(self._code(b"proof", shared).hex().encode(), found[5]):
            raise NotProved(ANOTHER_SECRET)
        name = found[2].decode("ascii", "replace")
        if name != expected:
            raise NotProved(f"its URL leads to member {name}, which differs from the configuration")
        to_asker, to_owner = self._keys(shared)
        return Session(name, Sealer(to_owner), Opener(to_asker), int(found[3] or 0))

    def _keys(self, shared: bytes) -> tuple[bytes, bytes]:
        return self._code(b"to asker", shared), self._code(b"to owner", shared)

    def _code(self, purpose: bytes, shared: bytes) -> bytes:
        return hmac.digest(self._key, purpose + b"\n" + shared, "sha256")
