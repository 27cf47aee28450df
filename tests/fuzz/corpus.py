"""The corpus: inputs kept in the tree, a folder for each target.

What fuzzing finds is added there under the digest of its bytes, so that `make test` plays it ever after.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "corpus"
MOST_BYTES: Final = 200_000
"""All of it together: it is played in every run of the tests."""


def inputs(target: str) -> list[bytes]:
    """The inputs kept for a target, in a fixed order."""
    return [path.read_bytes() for path in sorted((FOLDER / target).iterdir())]


def keep(target: str, data: bytes) -> Path:
    """Add an input; returns its file."""
    path = FOLDER / target / hashlib.sha256(data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
