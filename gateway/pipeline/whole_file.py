"""Write a text file atomically: a concurrent reader sees either the old text or the new one."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from gateway.pipeline.errors import PipelineFailed


def write_whole(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write the text atomically.  Raises PipelineFailed, and then leaves the file unchanged."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            made = Path(file.name)
            try:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
                # A reader of the file, such as a gateway that loads a plan, may run as another user.
                made.chmod(mode)
                made.replace(path)
            except BaseException:
                with suppress(OSError):
                    made.unlink()
                raise
    except OSError as error:
        raise PipelineFailed(f"{path}: {error.strerror or error}") from None
