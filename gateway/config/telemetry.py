"""Traces and the access log: where they go and what of them is kept."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from gateway.config.model import MisfitError, Model
from gateway.config.values import (
    GIB,
    KIB,
    MIB,
    Bytes,
    CollectorUrl,
    LogStreamUrl,
    NodeName,
    PartitionKey,
)


class TracingConfig(Model):
    """Tracing by OpenTelemetry, which needs the extra `opentelemetry`; off, and free, without an endpoint."""

    endpoint: CollectorUrl = Field(
        default="",
        description="OTLP/HTTP URL of the collector, such as http://127.0.0.1:4318/v1/traces; empty: no tracing.",
    )
    sample_ratio: float = Field(
        default=0.01, ge=0, le=1, description="Share of the traces begun here that are recorded."
    )
    follow_clients: bool = Field(
        default=True,
        description="Continue a client's trace and its sampling decision; false only links to it: for a public edge.",
    )
    service_name: NodeName = Field(default="durable-gateway", description="Name of this service in traces.")
    queue_spans: int = Field(
        default=2_048, ge=1, le=1_000_000, description="Most spans that wait for export; further ones are dropped."
    )
    export_timeout_s: float = Field(
        default=10, ge=0.1, le=300, description="Bound on handing one batch of spans to the collector."
    )


class LogConfig(Model):
    """The access log: a line of JSON for each request, off the path of every request."""

    sink: Literal["none", "stdout", "file", "stream"] = Field(
        default="none", description="Where lines go: nowhere, stdout, a file, or a durable stream at an origin."
    )
    path: str = Field(default="", description="File to write, with sink = file; what is set aside lies beside it.")
    rotate_bytes: Bytes = Field(
        default=256 * MIB, ge=0, le=1024 * GIB, description="Size at which the file is set aside; 0 is never."
    )
    rotate_s: float = Field(
        default=86_400,
        ge=0,
        le=31_536_000,
        description="It is set aside at multiples of this since 1970, 86400 at midnight UTC; 0 is never.",
    )
    keep_files: int = Field(default=7, ge=0, le=100_000, description="Most files that are kept beside the one in use.")
    stream_url: LogStreamUrl = Field(
        default="", description="Stream to append to, with sink = stream: at its origin, not through this gateway."
    )
    stream_authorization: SecretStr = Field(
        default=SecretStr(""), description="Authorization to append with; better set in the environment."
    )
    batch_bytes: Bytes = Field(
        default=256 * KIB, ge=KIB, le=64 * MIB, description="Most bytes in one write to the file, or one append."
    )
    batch_s: float = Field(
        default=0.5, ge=0.001, le=60, description="Longest wait of a line for others to be written with."
    )
    queue_records: int = Field(
        default=32_768,
        ge=1,
        le=10_000_000,
        description="Most lines that wait for the sink; further ones are dropped and counted.",
    )
    queue_bytes: Bytes = Field(
        default=64 * MIB, ge=64 * KIB, le=64 * GIB, description="Most memory of the lines that wait, in the same way."
    )
    client_address: Literal["full", "masked", "none"] = Field(
        default="masked", description="Clients' addresses: as they are, cut to /24 and /48, or left out."
    )
    query: Literal["full", "names", "none"] = Field(
        default="full",
        description="Queries, which may carry credentials: as they are, their parameters' names, or left out.",
    )
    partition_key: PartitionKey = Field(
        default=SecretStr(""),
        description="Secret behind partition ids, to have the same ones after a restart; empty: drawn at start.",
    )
    live_interval_s: float = Field(
        default=300, ge=0, le=86_400, description="A live read of this age has a line, and so on; 0: only at its end."
    )

    @model_validator(mode="after")
    def _sink_needs_its_place(self) -> Self:
        if self.sink == "file" and not self.path:
            raise MisfitError('is needed with sink = "file"', "path")
        if self.sink == "stream" and not self.stream_url:
            raise MisfitError('is needed with sink = "stream"', "stream_url")
        return self
