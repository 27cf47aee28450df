"""What the pipeline's commands run in: a Spark session, progress on stderr, and every failure as one line."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import typer

from gateway.aio.clock import SystemClock
from gateway.config.errors import PlanError
from gateway.pipeline.cli_options import settings
from gateway.pipeline.errors import PipelineFailed, one_line
from gateway.pipeline.session import DEFAULT_MASTER, is_submitted, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXTRA: Final = "pip install 'durable-gateway[pipeline]'"

Progress = Callable[[str], None]


def shown_progress() -> Progress:
    """Print progress, with the seconds since now."""
    clock = SystemClock()
    began = clock.now()

    def progress(line: str) -> None:
        typer.echo(f"{clock.now() - began:7.1f} s  {line}", err=True)

    return progress


@contextmanager
def failing() -> Iterator[None]:
    """Turn failures of a command that needs no Spark into PipelineFailed."""
    try:
        import pyarrow as pa
        from deltalake.exceptions import DeltaError

        yield
    except KeyboardInterrupt:
        raise PipelineFailed("stopped: the next run continues from here") from None
    except PlanError as error:
        raise PipelineFailed(str(error)) from None
    except ImportError as error:
        raise PipelineFailed(f"the pipeline needs {error.name}: {EXTRA}") from None
    except (OSError, DeltaError, pa.ArrowException) as error:
        raise PipelineFailed(f"the lake's store failed: {error}") from None


@contextmanager
def working(master: str | None, conf: list[str] | None) -> Iterator[tuple[SparkSession, Progress]]:
    """A Spark session for the block, and a function that prints progress.  Every failure becomes PipelineFailed."""
    chosen = settings(conf or [], "--conf", "KEY=VALUE")
    progress = shown_progress()
    try:
        from py4j.protocol import Py4JError, Py4JNetworkError
        from pyspark.errors import PySparkException
    except ImportError:
        raise PipelineFailed(f"the pipeline needs Spark: {EXTRA}") from None
    if master is None and not is_submitted(os.environ):
        master = DEFAULT_MASTER
    progress(f"starting Spark on {master or 'the cluster of spark-submit'}")
    try:
        spark = open_session(master, chosen)
    except (PySparkException, Py4JError) as error:
        raise PipelineFailed(f"Spark does not start: {one_line(error)}") from None
    # SIGTERM, from a service manager, stops the run as SIGINT does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with failing():
        try:
            yield spark, progress
        except (Py4JNetworkError, ConnectionError):
            raise PipelineFailed("Spark's Java has died: more memory may help, --conf spark.driver.memory=4g") from None
        except (PySparkException, Py4JError) as error:
            raise PipelineFailed(f"Spark failed: {one_line(error)}") from None
        finally:
            # The same signal may already have stopped Spark's Java.
            with suppress(Py4JError, OSError):
                # Otherwise every cancelled task logs an error of its own.
                spark.sparkContext.setLogLevel("OFF")
                spark.stop()
