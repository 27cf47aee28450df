"""Sinks of the access log: stdout, a rotated file, or a durable stream at an origin."""

from __future__ import annotations

import os
import random
from errno import EACCES, EISDIR, ENOENT, ENOTDIR
from pathlib import Path
from typing import assert_never

from gateway.aio.clock import Clock
from gateway.config.errors import ConfigError
from gateway.config.telemetry import LogConfig
from gateway.ops.access_log.sinks.descriptor import DescriptorSink
from gateway.ops.access_log.sinks.file import FileSink
from gateway.ops.access_log.sinks.sink import Sink
from gateway.ops.access_log.sinks.stream import StreamSink


def check_log(config: LogConfig) -> None:
    """Raise ConfigError if the configured file could not be written.  Nothing is made, and no lock is taken."""
    if config.sink != "file":
        return
    path = Path(config.path)
    # Asking for a file in a folder that is missing, or is none, fails with the error that opening it would.
    why = EISDIR if path.is_dir() else None
    if why is None and not os.access(path if path.exists() else path.parent, os.W_OK):
        why = EACCES if path.parent.is_dir() else ENOTDIR if path.parent.exists() else ENOENT
    if why is not None:
        raise ConfigError(f"log.path: {config.path} cannot be written: {os.strerror(why)}")


def open_sink(config: LogConfig, node: str, clock: Clock, rng: random.Random) -> Sink | None:
    """The configured sink; None for `none`.  ConfigError if the file cannot be written."""
    match config.sink:
        case "none":
            return None
        case "stdout":
            return DescriptorSink()
        case "file":
            try:
                return FileSink(
                    Path(config.path),
                    clock,
                    rotate_bytes=config.rotate_bytes,
                    rotate_s=config.rotate_s,
                    keep_files=config.keep_files,
                )
            except OSError as error:
                raise ConfigError(f"log.path: {config.path} cannot be written: {error.strerror or error}") from None
        case "stream":
            authorization = config.stream_authorization.get_secret_value()
            return StreamSink(config.stream_url, clock, rng, node=node, authorization=authorization)
        case _:
            assert_never(config.sink)
