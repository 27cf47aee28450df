"""An S3 server on loopback, for lakes that are URLs."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import boto3

_STARTED: Final = re.compile(r"Running on (http://127\.0\.0\.1:[0-9]+)")
_ROOT: Final = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
_END_S: Final = 30.0


@contextmanager
def bucket(name: str) -> Iterator[dict[str, str]]:
    """A server with one empty bucket; the variables by which clients find it.

    It is a process of its own: delta-rs holds Python's lock while it waits for an answer.
    """
    command = [sys.executable, "-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        url = next(match[1] for line in server.stderr if (match := _STARTED.search(line)) is not None)
        # It logs each request, and would stop when the pipe is full.
        drain = threading.Thread(target=deque, args=(server.stderr, 0))
        drain.start()
        try:
            boto3.client("s3", endpoint_url=url, **_ROOT).create_bucket(Bucket=name)
            yield {
                "AWS_ENDPOINT_URL": url,
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_REGION": "us-east-1",
                "AWS_ALLOW_HTTP": "true",
            }
        finally:
            server.terminate()
            server.wait(_END_S)
            drain.join(_END_S)
