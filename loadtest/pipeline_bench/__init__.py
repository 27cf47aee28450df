"""The pipeline's speed: lines of an access log through ingest and aggregate, and DuckDB on the same lines beside it."""
