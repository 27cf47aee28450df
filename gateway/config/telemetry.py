"""Traces and the access log: their destination, their sampling and their bounds."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from gateway.config.model import MisfitError, Model
from gateway.config.sizes import GIB, KIB, MIB
from gateway.config.values import Bytes, CollectorUrl, LogStreamUrl, NodeName, PartitionKey


class TracingConfig(Model):
    """Tracing by OpenTelemetry.  It needs the extra `opentelemetry`, and is off, at no cost, without an endpoint."""

    endpoint: CollectorUrl = Field(
        default="",
        description="OTLP/HTTP URL of the collector, such as http://127.0.0.1:4318/v1/traces; empty: no tracing.",
    )
    sample_ratio: float = Field(
        default=0.01, ge=0, le=1, description="Share of the traces begun by this gateway that are recorded."
    )
    follow_clients: bool = Field(
        default=False,
        description="Continue a client's trace with its sampling decision. Any client can then have its requests "
        "recorded. If false, a new trace begins, with a link to the client's trace.",
    )
    service_name: NodeName = Field(default="durable-gateway", description="Name of this service in traces.")
    queue_spans: int = Field(
        default=2_048, ge=1, le=1_000_000, description="Most spans that wait for export; further spans are dropped."
    )
    export_timeout_s: float = Field(
        default=10, ge=0.1, le=300, description="Longest time to hand one batch of spans to the collector."
    )


class LogConfig(Model):
    """The access log: one line of JSON for each request, written off the request path."""

    sink: Literal["none", "stdout", "file", "stream"] = Field(
        default="none", description="Destination of the lines: none, stdout, a file, or a durable stream at an origin."
    )
    path: str = Field(default="", description="File to write, with sink = file; rotated files are in the same folder.")
    rotate_bytes: Bytes = Field(
        default=256 * MIB, ge=0, le=1024 * GIB, description="Size at which the file is rotated; 0 is never."
    )
    rotate_s: float = Field(
        default=86_400,
        ge=0,
        le=31_536_000,
        description="The file is rotated when the Unix time reaches a multiple of this: with 86400, at midnight UTC. "
        "0 is never.",
    )
    keep_files: int = Field(default=7, ge=0, le=100_000, description="Most rotated files that are kept.")
    stream_url: LogStreamUrl = Field(
        default="", description="Stream to append to, with sink = stream: at its origin, not through this gateway."
    )
    stream_authorization: SecretStr = Field(
        default=SecretStr(""), description="Authorization header of the appends; better set in the environment."
    )
    batch_bytes: Bytes = Field(
        default=256 * KIB, ge=KIB, le=64 * MIB, description="Most bytes in one write to the file, or one append."
    )
    batch_s: float = Field(
        default=0.5,
        ge=0.001,
        le=60,
        description="Longest time that a line waits, so that several lines are written together.",
    )
    queue_records: int = Field(
        default=32_768,
        ge=1,
        le=10_000_000,
        description="Most lines that wait for the sink; further lines are dropped and counted.",
    )
    queue_bytes: Bytes = Field(
        default=64 * MIB,
        ge=64 * KIB,
        le=64 * GIB,
        description="Most memory of the lines that wait for the sink; further lines are dropped and counted.",
    )
    client_address: Literal["full", "masked", "none"] = Field(
        default="masked", description="How clients' addresses are logged: in full, cut to /24 and /48, or not at all."
    )
    query: Literal["full", "names", "none"] = Field(
        default="full",
        description="How queries are logged: in full, only the names of the parameters, or not at all. Queries may "
        "carry credentials.",
    )
    partition_key: PartitionKey = Field(
        default=SecretStr(""),
        description="Secret that partition ids are derived from, so that they survive a restart. Empty: random at "
        "each start; an upgrade in place keeps it.",
    )
    live_interval_s: float = Field(
        default=300,
        ge=0,
        le=86_400,
        description="A live read gets a log line at this interval, and a last line at its end. 0: only at its end.",
    )

    @model_validator(mode="after")
    def _sink_needs_its_target(self) -> Self:
        if self.sink == "file" and not self.path:
            raise MisfitError('is needed with sink = "file"', "path")
        if self.sink == "stream" and not self.stream_url:
            raise MisfitError('is needed with sink = "stream"', "stream_url")
        return self
