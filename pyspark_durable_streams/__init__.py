"""Durable Streams as a Spark data source: `spark.read.format("durable_streams")`, and the same for `readStream`,
`write` and `writeStream`.

Spark finds a top-level package of this kind of name by itself and takes `DefaultSource` from it.  Nothing here knows
the gateway: any origin or gateway that speaks the protocol will do.
"""

from pyspark_durable_streams.layout import by_stream
from pyspark_durable_streams.source import DefaultSource

__all__ = ["DefaultSource", "by_stream"]
