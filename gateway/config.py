"""What an operator can set: frozen models, each field with its unit, default, bounds and reason.

The models know nothing of files, environment or flags: `config_file` reads those and says where each value came from.
They are strict (a number in quotes is an error, not a guess) and refuse unknown keys, because a misspelt limit that is
silently ignored is found out on the worst day.  Units are in the names: `_s` is seconds, `_bytes` is bytes, and sizes
may also be written `"256MiB"`.  A field's description is its documentation; `config/gateway.toml` shows every one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from gateway.config_listener import ListenerConfig, TrustedProxies, check_addresses
from gateway.config_model import MisfitError, Model
from gateway.config_origins import (
    HealthCheckConfig,
    HostList,
    OriginConfig,
    OriginCredentialsConfig,
    OriginList,
    OriginsConfig,
    OriginTlsConfig,
)
from gateway.config_values import (
    GIB,
    KIB,
    MIB,
    Address,
    AllowedOrigins,
    Bytes,
    Codings,
    CollectorUrl,
    HeaderNames,
    ListenAddress,
    LogStreamUrl,
    NodeName,
    OffsetPatterns,
    OriginUrl,
    PartitionKey,
    Prefix,
    RouteHost,
    RouteName,
    parse_address,
)

_PORTS: Final = {"http": 80, "https": 443}


class CorsConfig(Model):
    """CORS answered at the edge for one route, in place of the origin's own headers."""

    allow_origins: AllowedOrigins = Field(default=("*",), description='Web origins that may read replies; "*" is any.')
    allow_credentials: bool = Field(default=False, description="Let browsers send cookies and credentials along.")
    max_age_s: int = Field(
        default=86_400, ge=0, le=604_800, description="How long a browser may keep a preflight's answer."
    )
    allow_headers: HeaderNames = Field(default=(), description="Request headers allowed beside the protocol's own.")
    expose_headers: HeaderNames = Field(
        default=(), description="Response headers shown to scripts beside the protocol's own."
    )

    @model_validator(mode="after")
    def _credentials_need_names(self) -> Self:
        if not self.allow_origins:
            raise MisfitError("names no one: leave the table out to pass the origin's headers through", "allow_origins")
        if self.allow_credentials and not {"*", "null"}.isdisjoint(self.allow_origins):
            raise MisfitError(
                'needs allow_origins by name: "*" would let every site read as the user', "allow_credentials"
            )
        return self


class RouteConfig(Model):
    """Which requests go to which origin, and how its streams are read, kept and followed."""

    name: RouteName = Field(
        default="default", description="Unique; names the route in logs, metrics and environment overrides."
    )
    host: RouteHost = Field(
        default="*",
        description='Host the request must name: "*" for any, an exact name, or "*.example.org" for names below it.',
    )
    prefix: Prefix = Field(
        default="/", description="Path the request must start with, in whole segments; the longest prefix wins."
    )
    origin: OriginUrl | None = Field(
        default=None,
        description="http(s) URL of the Durable Streams server; its path goes before the request's. No default.",
    )
    origins: OriginList = Field(
        default=(),
        description="Several in place of one, of the same streams and the same path: a list of "
        '{ url = "http://a", weight = 2 }.',
    )
    leaders: HostList = Field(
        default=(),
        description="Further hosts that an origin's 307 or 308 may lead to; it is followed inside, to hosts named here "
        "alone.",
    )
    health_check: HealthCheckConfig | None = Field(
        default=None, description="Active checks; absent: with several origins as by default, with one none."
    )
    origin_credentials: OriginCredentialsConfig | None = Field(
        default=None, description="Credentials that the origins are shown; absent: those that clients send."
    )
    origin_tls: OriginTlsConfig | None = Field(
        default=None, description="TLS to the origins; absent: by the certificates that the system trusts."
    )
    strip_prefix: bool = Field(default=False, description="Take the prefix off the path before asking the origin.")
    cache: bool = Field(default=True, description="Keep tapes and share fetches; false relays every request.")
    credentials: Literal["partition", "shared", "bypass"] = Field(
        default="partition",
        description="A request with credentials shares a tape with equal credentials, with everyone, or bypasses.",
    )
    credential_headers: HeaderNames = Field(
        default=("authorization", "cookie"), description="Request headers that make a request one with credentials."
    )
    cors: CorsConfig | None = Field(
        default=None, description="CORS at the edge; absent: the origin's own headers pass."
    )
    long_poll_timeout_s: float = Field(
        default=25,
        ge=0.05,
        le=300,
        description="Longest wait of a long-poll; below the 30 s at which some clients give up.",
    )
    sse_lifetime_s: float = Field(
        default=60,
        ge=1,
        le=86_400,
        description="Age at which an SSE connection is ended in order; jittered down, spec 8.2.",
    )
    heartbeat_s: float = Field(
        default=15, ge=0.05, le=300, description="Silence on an SSE connection after which a comment is sent."
    )
    live_linger_s: float = Field(
        default=5, ge=0, le=3_600, description="How long a stream is still followed after its last live reader left."
    )
    connect_timeout_s: float = Field(default=5, ge=0.01, le=120, description="Bound on connecting to the origin.")
    first_byte_timeout_s: float = Field(
        default=30, ge=0.01, le=600, description="Bound on the wait for a reply's head, except on live reads."
    )
    live_first_byte_timeout_s: float = Field(
        default=60,
        ge=0.01,
        le=600,
        description="The same for long-poll and SSE; above the origin's own long-poll timeout.",
    )
    idle_timeout_s: float = Field(
        default=30, ge=0.01, le=600, description="Bound on silence in the middle of a reply's body."
    )
    total_timeout_s: float = Field(
        default=600, ge=0.01, le=86_400, description="Bound on one upstream request, SSE excepted."
    )
    collapse_wait_s: float = Field(
        default=5, ge=0.01, le=600, description="A shared fetch with no answer for so long is replaced by a new one."
    )
    retry_attempts: int = Field(
        default=1, ge=0, le=5, description="Times a failed read is asked again; nothing else is repeated."
    )
    retry_budget: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="Most retries as a share of requests, over all routes to the origin: a sick one is not hit harder.",
    )
    trust_s: float = Field(
        default=60,
        ge=0,
        le=86_400,
        description="How long hits are given without a sign from the origin that the stream is still the same.",
    )
    tail: Literal["followed", "asked"] = Field(
        default="followed",
        description="Who is believed about a followed stream's tail: its live request, or the origin, at every read.",
    )
    tail_heard_s: float = Field(
        default=10,
        ge=0.05,
        le=3_600,
        description="How long a live request that is silent is believed about the tail by reads that are not live.",
    )
    follow_above_per_s: float = Field(
        default=1,
        ge=0,
        le=100_000,
        description="Reads of a tail a second above which its stream is followed without a live reader; 0 is never.",
    )
    tail_fresh_s: float = Field(
        default=0,
        ge=0,
        le=3_600,
        description="How long the tail of a stream that is not followed is repeated without asking the origin.",
    )
    absent_s: float = Field(
        default=1,
        ge=0,
        le=60,
        description="How long a 404 or 410 of the origin is repeated; a write through the gateway ends it at once.",
    )
    absent_per_s: float = Field(
        default=200,
        ge=0,
        le=1_000_000,
        description="Most 404s a second that reads of unknown streams may cost the origin; 503 beyond. 0 is no bound.",
    )
    relayed_offsets: OffsetPatterns = Field(
        default=("snapshot", "*_snapshot"),
        description='Offsets that name no position and are relayed, "*" for any characters; these are Yjs servers\'.',
    )
    hit_for_miss_s: float = Field(
        default=120,
        ge=0,
        le=86_400,
        description="How long an uncacheable answer is remembered, to fetch without collapsing.",
    )
    compression: Codings = Field(
        default=("zstd", "br", "gzip"),
        description="Codings for answers made from a tape, in order of preference; an empty list is none.",
    )
    zstd_level: int = Field(default=3, ge=1, le=19, description="Effort of zstd; every body is coded once for all.")
    brotli_level: int = Field(
        default=4, ge=0, le=11, description="Effort of br; above 6 it takes several times as long."
    )
    gzip_level: int = Field(default=4, ge=1, le=9, description="Effort of gzip; 6 takes twice as long.")

    @model_validator(mode="after")
    def _asked_is_asked(self) -> Self:
        if self.tail == "asked" and self.tail_fresh_s:
            raise MisfitError('goes with tail = "followed" only: an asked tail is never repeated', "tail_fresh_s")
        return self

    @model_validator(mode="after")
    def _origins_agree(self) -> Self:
        if self.origin is None and not self.origins:
            raise MisfitError("is required and has no default (or a list, origins)", "origin")
        if self.origin is not None and self.origins:
            raise MisfitError("is set beside origin: name one or the other", "origins")
        seen: set[tuple[object, ...]] = set()
        for index, one in enumerate(self.origins):
            # With and without the scheme's own port it is one server.
            parts = urlsplit(one.url)
            server = parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme]
            if server in seen:
                raise MisfitError(f"{one.url} is there twice: give it a weight", "origins", index, "url")
            seen.add(server)
        path = urlsplit(self.members[0].url).path
        lists = (("origins", [one.url for one in self.origins]), ("leaders", self.leaders))
        for name, urls in lists:
            for index, url in enumerate(urls):
                if urlsplit(url).path != path:
                    text = f"{url} has another path than {self.members[0].url}: a stream has one path at all of them"
                    raise MisfitError(text, name, index, *(["url"] if name == "origins" else []))
        return self

    @property
    def members(self) -> tuple[OriginConfig, ...]:
        """The origins, be it one."""
        return self.origins if self.origin is None else (OriginConfig(url=self.origin),)

    @model_validator(mode="after")
    def _partition_needs_headers(self) -> Self:
        if self.credentials == "partition" and not self.credential_headers:
            raise MisfitError('needs a name with credentials = "partition": else everyone shares', "credential_headers")
        return self

    @property
    def key(self) -> str:
        """The name as environment variables spell it."""
        return self.name.upper().replace("-", "_")


class LimitsConfig(Model):
    """Bounds on memory, connections and patience with clients, for the whole process."""

    cache_bytes: Bytes = Field(default=256 * MIB, ge=0, le=1024 * GIB, description="Most stream bytes kept in tapes.")
    eviction: Literal["s3-fifo", "sieve", "lru"] = Field(
        default="s3-fifo", description="Which stream goes when that is spent; the default withstands scans."
    )
    compress_min_bytes: Bytes = Field(
        default=KIB,
        ge=1,
        le=GIB,
        description="Smallest body that is compressed; below it there is little to save.",
    )
    compress_cache_bytes: Bytes = Field(
        default=32 * MIB,
        ge=0,
        le=64 * GIB,
        description="Most compressed bytes kept; they count within cache_bytes, of which they take a quarter at most.",
    )
    max_reply_bytes: Bytes = Field(
        default=4 * MIB,
        ge=KIB,
        le=GIB,
        description="Largest reply made from a tape; a longer range is answered in parts.",
    )
    max_flight_bytes: Bytes = Field(
        default=64 * MIB,
        ge=KIB,
        le=64 * GIB,
        description="Most bytes that one shared fetch may hold for its followers.",
    )
    max_request_bytes: Bytes = Field(
        default=64 * MIB, ge=KIB, le=64 * GIB, description="Largest request body that is relayed; 413 above."
    )
    max_connections: int = Field(
        default=20_000, ge=1, le=10_000_000, description="Most client connections at once; further ones are refused."
    )
    upstream_connections: int = Field(
        default=512,
        ge=1,
        le=65_535,
        description="Most connections to all origins at once, three quarters to one of several; each stream followed "
        "live has its own.",
    )
    followed_streams: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Most streams followed live at once; live readers of further ones are answered 503.",
    )
    client_header_timeout_s: float = Field(
        default=10, ge=0.05, le=600, description="A client must have sent a request's head within this."
    )
    tls_handshake_timeout_s: float = Field(
        default=10, ge=0.05, le=600, description="A TLS handshake must be over within this."
    )
    client_idle_timeout_s: float = Field(
        default=30, ge=0.05, le=3_600, description="Bound on silence in the middle of a request's body."
    )
    client_write_timeout_s: float = Field(
        default=30, ge=0.05, le=3_600, description="Bound on a client that takes no bytes; its connection is dropped."
    )
    keepalive_timeout_s: float = Field(
        default=75, ge=0, le=3_600, description="How long an idle client connection is kept for its next request."
    )
    http2_streams: int = Field(
        default=128, ge=1, le=65_535, description="Most requests open at once on one HTTP/2 connection of a client."
    )
    send_buffer_bytes: Bytes = Field(
        default=256 * KIB, ge=4 * KIB, le=GIB, description="Unsent bytes held for one client before it counts as slow."
    )


class ServerConfig(Model):
    """Where the gateway listens, how it leaves, and what it calls itself."""

    listen: ListenAddress = Field(
        default="127.0.0.1:4437",
        description="Address for clients, plain; port 0 picks a free one. With [[listener]] it is one more where it is "
        "set, and none where it is not.",
    )
    admin: ListenAddress = Field(
        default="127.0.0.1:9437",
        description="Address of the admin API, the console and /metrics; beyond loopback it asks for a token.",
    )
    shutdown_timeout_s: float = Field(
        default=10, ge=0.1, le=600, description="Bound on the drain after SIGTERM or SIGINT; what is left is dropped."
    )
    fast_path: bool = Field(
        default=True, description="Look repeated requests up by their bytes; false is for comparison."
    )
    trusted_proxies: TrustedProxies = Field(
        default=(),
        description='Networks of proxies in front, such as "10.0.0.0/8", and "unix", that are believed about who their '
        "client is. Empty: nobody is.",
    )
    forwarded_by: Literal["x-forwarded-for", "forwarded"] = Field(
        default="x-forwarded-for",
        description="What those proxies write: X-Forwarded-For and X-Forwarded-Proto, or Forwarded (RFC 7239); the "
        "other is not looked at.",
    )
    console_writes: bool = Field(
        default=False, description="Forms in the console that create, append to, close and delete streams."
    )
    node_name: NodeName = Field(
        default="durable-gateway",
        description="Name in Via, Cache-Status and CDN-Loop; differs from the next gateway's.",
    )

    @property
    def listen_address(self) -> Address:
        """`listen`, taken apart."""
        return parse_address(self.listen)

    @property
    def admin_address(self) -> Address:
        """`admin`, taken apart."""
        return parse_address(self.admin)

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        if self.listen == self.admin and self.listen_address.port:
            raise MisfitError(f"is {self.admin}, as listen is", "admin")
        return self


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


class CachePlanConfig(Model):
    """The plan that the pipeline made of the traffic, and which of its wishes are granted."""

    file: str = Field(
        default="", description="Plan to take, a JSON document; read at start and at each reload. Empty: none."
    )
    take_memory: bool = Field(
        default=True, description="Keep to the plan's budget, unless limits.cache_bytes is set: then that is kept to."
    )
    take_pins: bool = Field(default=True, description="Keep the streams that it pins when others are given up.")
    pin_share: float = Field(
        default=0.5, ge=0, le=0.9, description="Most of the budget that pinned streams may take as such."
    )
    take_warm: bool = Field(
        default=True, description="Fetch the streams that it names before anybody asks, once the plan is taken."
    )
    warm_bytes: Bytes = Field(
        default=128 * MIB, ge=0, le=1024 * GIB, description="Most bytes fetched for that; half of the budget at most."
    )
    warm_s: float = Field(
        default=60,
        ge=0.1,
        le=3_600,
        description="How long that may go on; its beginnings are spread over a part of it.",
    )
    warm_fetches: int = Field(default=4, ge=1, le=256, description="Most such fetches at once.")
    take_do_not_store: bool = Field(
        default=True, description="Keep no bytes of the streams that it holds to be not worth it, once they are sent."
    )
    take_lifetimes: bool = Field(
        default=True, description="Give up tapes that nobody has asked for as long as it says, before room is needed."
    )


class CacheConfig(Model):
    """What is kept, beyond `limits.cache_bytes`."""

    plan: CachePlanConfig = CachePlanConfig()


class GatewayConfig(Model):
    """One gateway process: a server, its limits and at least one route.  `routes` is `[[route]]` in a file, `listeners`
    is `[[listener]]`."""

    server: ServerConfig = ServerConfig()
    limits: LimitsConfig = LimitsConfig()
    origins: OriginsConfig = OriginsConfig()
    cache: CacheConfig = CacheConfig()
    tracing: TracingConfig = TracingConfig()
    log: LogConfig = LogConfig()
    listeners: tuple[ListenerConfig, ...] = Field(
        default=(), strict=False, max_length=64, description="Where clients are accepted; none: at server.listen."
    )
    routes: tuple[RouteConfig, ...] = Field(
        strict=False, description="Which requests go to which origin; at least one."
    )

    @model_validator(mode="after")
    def _routes_differ(self) -> Self:
        if not self.routes:
            raise MisfitError("at least one is needed, with an origin", "routes")
        names: set[str] = set()
        places: dict[tuple[str, str], str] = {}
        for index, route in enumerate(self.routes):
            if route.key in names:
                text = f"another route is named {route.name!r} (- and _ count as the same)"
                raise MisfitError(text, "routes", index, "name")
            names.add(route.key)
            other = places.setdefault((route.host, route.prefix), route.name)
            if other != route.name:
                text = f"route {other!r} already takes host {route.host!r} with {route.prefix!r}"
                raise MisfitError(text, "routes", index, "prefix")
        return self

    @model_validator(mode="after")
    def _listeners_differ(self) -> Self:
        check_addresses(self.listeners)
        return self

    @property
    def every_listener(self) -> tuple[ListenerConfig, ...]:
        """Where clients are accepted: at `server.listen` as well, unless listeners stand in for its default."""
        if self.listeners and "listen" not in self.server.model_fields_set:
            return self.listeners
        return (*self.listeners, ListenerConfig(address=self.server.listen))

    @classmethod
    def for_origin(cls, url: str | Sequence[str], **overrides: Any) -> Self:
        """One route to `url`, or to several; an override is any field of the route, the limits, the server or another
        section, by its own name; `listeners` is a list of tables.

        `GatewayConfig.for_origin("http://127.0.0.1:4438", listen="127.0.0.1:0", cache_bytes="64MiB")`.  TypeError for a
        name that is no field, pydantic's ValidationError (a ValueError) for a bad value.
        """
        sections: dict[str, type[Model]] = {
            "server": ServerConfig,
            "limits": LimitsConfig,
            "origins": OriginsConfig,
            "cache.plan": CachePlanConfig,
            "tracing": TracingConfig,
            "log": LogConfig,
            "route": RouteConfig,
        }
        parts: dict[str, dict[str, Any]] = {name: {} for name in sections}
        listeners = overrides.pop("listeners", ())
        parts["route"] = {"origin": url} if isinstance(url, str) else {"origins": list(url)}
        for key, value in overrides.items():
            section = next((name for name, model in sections.items() if key in model.model_fields), None)
            if section is None:
                raise TypeError(f"{key!r} is no field of the server, limits, origins, plan, tracing, log or of a route")
            parts[section][key] = value
        route, plan = parts.pop("route"), parts.pop("cache.plan")
        return cls.model_validate({**parts, "cache": {"plan": plan}, "listeners": listeners, "routes": [route]})
