"""Public ids of credential partitions: equal for equal credentials, and useless for recovering them.

A tape's partition is a plain digest of credentials, so it allows guesses to be tested.  The id is a digest of that
under a secret key (BLAKE2b, RFC 7693 section 2.9).  With a random key, drawn at the start, ids mean nothing after a
restart or at another gateway; with a configured key they stay the same.
"""

from __future__ import annotations

import hashlib
import secrets

from gateway.protocol.sharing import Partition

_KEY_BYTES = 32
_ID_BYTES = 8
_REMEMBERED = 10_000


class PartitionIds:
    """Maps partitions to ids of 16 hexadecimal digits, under one key."""

    def __init__(self, key: str = "") -> None:
        """`key` is any text; if it is empty, a random key is drawn."""
        self._key = hashlib.sha256(key.encode()).digest() if key else secrets.token_bytes(_KEY_BYTES)
        self._ids: dict[Partition, str] = {}

    def of(self, partition: Partition) -> str:
        """The id of a partition."""
        found = self._ids.get(partition)
        if found is None:
            if len(self._ids) >= _REMEMBERED:
                self._ids.clear()
            digest = hashlib.blake2b(
                str(partition).encode("utf-8", "surrogateescape"), key=self._key, digest_size=_ID_BYTES
            )
            found = self._ids[partition] = digest.hexdigest()
        return found
