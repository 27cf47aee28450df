"""The script for `spark-submit`: the commands of `durable-gateway pipeline`, on a cluster.

    spark-submit --master … --py-files durable-gateway.zip gateway/pipeline/job.py run SOURCE --lake s3://…

The zip holds the packages `gateway` and `pyspark_durable_streams`; a wheel renamed to `.zip` will do.  Workers need
it and what `requirements/workers.txt` names.
"""

from __future__ import annotations

import sys

from gateway.pipeline.cli import submitted

if __name__ == "__main__":
    sys.exit(submitted())
