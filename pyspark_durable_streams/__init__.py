"""Durable Streams as a Spark data source: `spark.read.format("durable_streams")`, and the same for `readStream`,
`write` and `writeStream`.

Spark finds a top-level package with a name of this kind and takes `DefaultSource` from it.  Any origin or gateway that
speaks the protocol will do.  A gateway's admin API is used only if an option names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_durable_streams.layout import by_stream
    from pyspark_durable_streams.source import DefaultSource

__all__ = ["DefaultSource", "by_stream"]


def __getattr__(name: str) -> Any:
    # Imported on demand: they load PySpark, which counting messages (`framing`) does not need.
    match name:
        case "DefaultSource":
            try:
                from pyspark_durable_streams.source import DefaultSource
            except ImportError as error:
                if not (error.name or "").startswith("pyspark."):
                    raise
                # An AttributeError, because Spark asks for this name in each package that could have a data source:
                # with any other error it would find none of them.
                raise AttributeError("the data source durable_streams needs Spark 4.2 or later") from None
            return DefaultSource
        case "by_stream":
            from pyspark_durable_streams.layout import by_stream

            return by_stream
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
