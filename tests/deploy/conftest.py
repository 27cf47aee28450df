"""What `make test-long` alone runs of these tests."""

from __future__ import annotations

from tests.effort import IS_LONG

# A Spark Connect server of its own takes most of a minute of processor time; `make test-long` starts it.
collect_ignore = [] if IS_LONG else ["test_spark_connect.py"]
