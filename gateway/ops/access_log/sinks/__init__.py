"""Sinks of the access log: stdout, a rotated file, or a durable stream at an origin."""

from __future__ import annotations

import os
import random
import stat
from errno import EACCES, EISDIR, ENOTDIR
from pathlib import Path
from typing import assert_never

from gateway.aio.clock import Clock
from gateway.config.errors import ConfigError
from gateway.config.telemetry import LogConfig
from gateway.ops.access_log.sinks.descriptor import DescriptorSink
from gateway.ops.access_log.sinks.file import FileSink
from gateway.ops.access_log.sinks.sink import Sink
from gateway.ops.access_log.sinks.stream import StreamSink
from gateway.ops.access_log.sinks.turns import WriteTurns


def check_log(config: LogConfig) -> None:
    """Raise ConfigError if the configured file cannot be written.  Creates no file and takes no lock."""
    if config.sink != "file":
        return
    try:
        _check_writable(Path(config.path))
    except (OSError, ValueError) as error:
        raise _unwritable(config, error) from None


def _check_writable(path: Path) -> None:
    """Raise the OSError or ValueError that opening this file for writing would raise."""
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        # Opening would create the file.  If the path is a link, opening would create the file to which the link leads.
        path, is_folder = Path(os.path.realpath(path)).parent, False
        if not stat.S_ISDIR(path.stat().st_mode):
            raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR)) from None
    if is_folder:
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
    if not os.access(path, os.W_OK):
        raise PermissionError(EACCES, os.strerror(EACCES))


def _unwritable(config: LogConfig, error: OSError | ValueError) -> ConfigError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    # Opening a path with a NUL raises ValueError, and the NUL must not be printed unescaped.
    path = config.path if config.path.isprintable() else repr(config.path)
    return ConfigError(f"log.path: {path} cannot be written: {why}")


def open_sink(config: LogConfig, node: str, clock: Clock, rng: random.Random, folder: str | None = None) -> Sink | None:
    """Make the configured sink; None for `none`.  With a `folder`, other processes with this folder write to the same
    place.  Raises ConfigError if the file cannot be written.
    """
    match config.sink:
        case "none":
            return None
        case "stdout":
            return DescriptorSink(clock, turns=WriteTurns(Path(folder)) if folder is not None else None)
        case "file":
            try:
                return FileSink(
                    Path(config.path),
                    clock,
                    rotate_bytes=config.rotate_bytes,
                    rotate_s=config.rotate_s,
                    keep_files=config.keep_files,
                    is_shared=folder is not None,
                )
            except (OSError, ValueError) as error:
                raise _unwritable(config, error) from None
        case "stream":
            authorization = config.stream_authorization.get_secret_value()
            return StreamSink(config.stream_url, clock, rng, node=node, authorization=authorization)
        case _:
            assert_never(config.sink)
