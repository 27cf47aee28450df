"""Public ids of partitions (readers with equal credentials).  Equal credentials have equal ids, and an id does not
reveal the credentials.

A partition's name is a plain digest of the credentials.  With this digest, an attacker could test guesses of the
credentials.  The public id is a digest of the partition under a secret key (BLAKE2b, RFC 7693 section 2.9).  By default
the key is chosen at random at the start, so ids differ after a restart and at other gateways.  An upgrade in place
keeps the key, because a purge by id must still find the stream at the previous version until that version has ended.
With a configured key, ids stay the same.
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
        """`key` is any text.  If `key` is empty, a random key is used."""
        self._key = hashlib.sha256(key.encode()).digest() if key else secrets.token_bytes(_KEY_BYTES)
        self._ids: dict[Partition, str] = {}

    def of(self, partition: Partition) -> str:
        """Return the id of a partition."""
        found = self._ids.get(partition)
        if found is None:
            if len(self._ids) >= _REMEMBERED:
                self._ids.clear()
            digest = hashlib.blake2b(
                str(partition).encode("utf-8", "surrogateescape"), key=self._key, digest_size=_ID_BYTES
            )
            found = self._ids[partition] = digest.hexdigest()
        return found
