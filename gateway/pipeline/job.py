"""The script for `spark-submit`: the commands of `durable-gateway pipeline`, on a cluster.

    spark-submit --master … --py-files durable-gateway.zip gateway/pipeline/job.py run SOURCE --lake s3://…

The zip contains the packages `gateway` and `pyspark_durable_streams`.  A wheel renamed to `.zip` is enough.  Workers
also need the packages in `requirements/workers.txt`.
"""

from __future__ import annotations

import sys

from gateway.pipeline.cli import submitted

if __name__ == "__main__":
    sys.exit(submitted())
