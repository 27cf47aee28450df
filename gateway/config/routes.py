"""Routes: which requests each one serves, its origins, and how its streams are cached and followed."""

from __future__ import annotations

from typing import Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator
from yarl import URL

from gateway.config.authorisation import AuthRuleConfig
from gateway.config.model import MisfitError, Model
from gateway.config.origins import (
    HealthCheckConfig,
    HostList,
    OriginConfig,
    OriginCredentialsConfig,
    OriginList,
    OriginTlsConfig,
)
from gateway.config.values import (
    AllowedOrigins,
    BasinName,
    Codings,
    ContentType,
    CookieNames,
    HeaderName,
    HeaderNames,
    OffsetPatterns,
    OriginUrl,
    Prefix,
    RouteHost,
    RouteName,
)

DEFAULT_CONTENT_TYPE: Final = "application/octet-stream"

_PORTS: Final = {"http": 80, "https": 443}


class CorsConfig(Model):
    """CORS answered at the edge for one route, in place of the origin's own headers."""

    allow_origins: AllowedOrigins = Field(
        default=("*",), description='Web origins that may read replies; "*" allows any.'
    )
    allow_credentials: bool = Field(default=False, description="Let browsers send cookies and other credentials.")
    max_age_s: int = Field(
        default=86_400, ge=0, le=604_800, description="How long a browser may keep the answer to a preflight request."
    )
    allow_headers: HeaderNames = Field(
        default=(), description="Request headers allowed in addition to the protocol's own."
    )
    expose_headers: HeaderNames = Field(
        default=(), description="Response headers exposed to scripts in addition to the protocol's own."
    )

    @model_validator(mode="after")
    def _credentials_need_names(self) -> Self:
        if not self.allow_origins:
            raise MisfitError("is empty: leave the table out to relay the origin's own headers", "allow_origins")
        if self.allow_credentials and not {"*", "null"}.isdisjoint(self.allow_origins):
            raise MisfitError(
                'needs names in allow_origins: with "*", every site could read as the user', "allow_credentials"
            )
        return self


class BridgeConfig(Model):
    """How S2 streams are presented as Durable Streams."""

    basin: BasinName = Field(
        default="", description="Basin of the route's streams. Empty: the first segment of the path names it."
    )
    records: Literal["json", "bytes", "envelope"] = Field(
        default="json",
        description="Form of the content. json: the body of each record is one JSON message. bytes: the bodies of the "
        "records, one after the other. envelope: each record is a JSON message with seq_num, timestamp, "
        "headers and body.",
    )
    content_type: ContentType = Field(
        default=DEFAULT_CONTENT_TYPE, description="Content type of the streams, with records = bytes."
    )

    @model_validator(mode="after")
    def _type_is_of_bytes(self) -> Self:
        if self.records != "bytes" and self.content_type != DEFAULT_CONTENT_TYPE:
            raise MisfitError(
                'can be set only with records = "bytes": otherwise it is application/json', "content_type"
            )
        return self


class RouteConfig(Model):
    """One route: which requests it serves, its origins, and how its streams are read, cached and followed."""

    name: RouteName = Field(
        default="default", description="Unique; names the route in logs, metrics and environment overrides."
    )
    host: RouteHost = Field(
        default="*",
        description='Host the request must name: "*" for any, an exact name, or "*.example.org" for names below '
        "it. The origin gets requests with its own host name, so all hosts of a route have the same "
        'streams. With protocol "s2" and "*.example.org" the first part of the name is the basin.',
    )
    prefix: Prefix = Field(
        default="/", description="Path the request must start with, in whole segments; the longest prefix wins."
    )
    origin: OriginUrl | None = Field(
        default=None,
        description="http(s) URL of the Durable Streams server; its path is put before the request's path. No default.",
    )
    protocol: Literal["durable-streams", "s2"] = Field(
        default="durable-streams",
        description="Protocol of the origin. s2: reads of S2 streams are shared, and all other requests are relayed.",
    )
    present: Literal["origin", "durable-streams"] = Field(
        default="origin",
        description="Protocol for clients: the origin's protocol, or Durable Streams, with each S2 stream as a "
        "Durable Stream.",
    )
    bridge: BridgeConfig | None = Field(
        default=None, description='S2 streams as Durable Streams, with present = "durable-streams"; absent: defaults.'
    )
    consistency: Literal["linearizable", "bounded-staleness"] = Field(
        default="linearizable",
        description="Consistency of reads of S2 streams. linearizable: a read sees everything acknowledged before it. "
        "bounded-staleness: for tail_heard_s, a read of a stream with live readers may also end at the "
        "latest tail that their session at the origin has stated.",
    )
    origins: OriginList = Field(
        default=(),
        description="Several origins in place of one, with the same streams and the same path: a list of { url = "
        '"http://a", weight = 2 }.',
    )
    leaders: HostList = Field(
        default=(),
        description="Further hosts to which an origin may redirect with 307 or 308. The gateway follows the redirect "
        "itself, to these hosts only.",
    )
    health_check: HealthCheckConfig | None = Field(
        default=None, description="Active health checks; absent: the defaults for several origins, none for one."
    )
    origin_credentials: OriginCredentialsConfig | None = Field(
        default=None, description="Credentials sent to the origins; absent: the credentials in the client's request."
    )
    origin_tls: OriginTlsConfig | None = Field(
        default=None, description="TLS to the origins; absent: the system's authorities, no client certificate."
    )
    origin_http: Literal["1.1", "2"] = Field(
        default="1.1",
        description="HTTP version of requests to the origins. Version 2 is negotiated by ALPN over TLS, and used with "
        "prior knowledge (h2c) without TLS. There is no fallback.",
    )
    strip_prefix: bool = Field(default=False, description="Remove the prefix from the path of requests to the origin.")
    cache: bool = Field(
        default=True, description="Cache streams in tapes and share fetches; false relays every request."
    )
    credentials: Literal["partition", "shared", "bypass"] = Field(
        default="partition",
        description="How requests with credentials are cached: separately for each set of credentials, together with "
        "all requests, or not at all.",
    )
    credential_headers: HeaderNames = Field(
        default=("authorization", "cookie"), description="Request headers that count as credentials."
    )
    auth: tuple[AuthRuleConfig, ...] = Field(
        default=(),
        strict=False,
        max_length=16,
        description="Rules of authorisation, tried in order. A request that no rule allows is refused. Without rules, "
        "all requests are served.",
    )
    conceal: bool = Field(
        default=False,
        description="With [[route.auth]], answer a forbidden request in the same way as a request for a stream that "
        "does not exist.",
    )
    store_private: bool = Field(
        default=False,
        description="With [[route.auth]], store and share replies that the origin marks private, because the gateway "
        "authorises each reader. Answers stay private.",
    )
    client_credentials: Literal["drop", "pass"] = Field(
        default="drop",
        description="Whether the origin receives the credentials that [[route.auth]] has checked: drop removes the "
        "credential headers, pass sends them on.",
    )
    principal_header: HeaderName | Literal[""] = Field(
        default="",
        description="Header that states the principal of a relayed request to the origin. If a client sends this "
        "header itself, it is removed. Empty: no header.",
    )
    issuer_header: HeaderName | Literal[""] = Field(
        default="",
        description="Header that states the principal's issuer; needed if several issuers may use the same name. "
        "Empty: no header.",
    )
    tenant_header: HeaderName | Literal[""] = Field(
        default="", description="Header that states the principal's tenant. Empty: no header."
    )
    ignore_set_cookie: CookieNames = Field(
        default=(),
        description="Names of cookies that do not prevent a reply from being shared, such as a load balancer's "
        "cookies. Shared replies are sent without these cookies.",
    )
    cors: CorsConfig | None = Field(
        default=None, description="CORS at the edge; absent: the origin's own headers are relayed."
    )
    long_poll_timeout_s: float = Field(
        default=25,
        ge=0.05,
        le=300,
        description="Longest wait of a long-poll; the default is below the 30 s at which some clients give up.",
    )
    sse_lifetime_s: float = Field(
        default=60,
        ge=1,
        le=86_400,
        description="Age at which an SSE connection is closed cleanly; jittered down (spec 8.2).",
    )
    heartbeat_s: float = Field(
        default=15,
        ge=0.05,
        le=300,
        description="Idle time on an SSE connection after which a heartbeat comment is sent.",
    )
    live_linger_s: float = Field(
        default=5,
        ge=0,
        le=3_600,
        description="How long a stream is still followed after its last live reader has left.",
    )
    connect_timeout_s: float = Field(default=5, ge=0.01, le=120, description="Longest time to connect to the origin.")
    first_byte_timeout_s: float = Field(
        default=30, ge=0.01, le=600, description="Longest wait for a reply's head, except for live reads."
    )
    live_first_byte_timeout_s: float = Field(
        default=60,
        ge=0.01,
        le=600,
        description="Longest wait for a reply's head on long-poll and SSE. It must be longer than the origin's own "
        "long-poll timeout.",
    )
    idle_timeout_s: float = Field(
        default=30,
        ge=0.01,
        le=600,
        description="Longest pause in the middle of a reply's body. In a session with an S2 origin it is always 20 s, "
        "because S2 sends a heartbeat at least every 15 s.",
    )
    total_timeout_s: float = Field(
        default=600,
        ge=0.01,
        le=86_400,
        description="Longest time that one request to an origin may take, except for SSE.",
    )
    collapse_wait_s: float = Field(
        default=5,
        ge=0.01,
        le=600,
        description="Time without an answer after which a new fetch replaces a shared fetch.",
    )
    retry_attempts: int = Field(
        default=1, ge=0, le=5, description="Most retries of a failed read; other requests are not retried."
    )
    retry_budget: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="Most retries as a share of requests, over all routes to the origin, so that retries do not "
        "overload a failing origin.",
    )
    trust_s: float = Field(
        default=60,
        ge=0,
        le=86_400,
        description="How long a stream is served from memory after the origin has last shown that the stream is "
        "unchanged and still has the bytes.",
    )
    tail: Literal["followed", "asked"] = Field(
        default="followed",
        description="Source of a followed stream's tail: the gateway's own live request, or the origin, which is "
        "asked at every read.",
    )
    tail_heard_s: float = Field(
        default=10,
        ge=0.05,
        le=3_600,
        description="How long catch-up reads use the tail of a live request after it has last received anything.",
    )
    follow_above_per_s: float = Field(
        default=1,
        ge=0,
        le=100_000,
        description="Reads of a stream's tail per second above which the stream is followed without a live reader, "
        "after a burst of three with one process; 0 is never.",
    )
    tail_fresh_s: float = Field(
        default=0,
        ge=0,
        le=3_600,
        description="How long the tail of a stream that is not followed may be repeated without asking the origin.",
    )
    absent_s: float = Field(
        default=1,
        ge=0,
        le=60,
        description="How long an origin's 404 or 410 is repeated without asking the origin. A write through the "
        "gateway ends this time at once.",
    )
    absent_per_s: float = Field(
        default=200,
        ge=0,
        le=1_000_000,
        description="Most 404s a second from the origin for reads of unknown streams; further reads of unknown streams "
        "are answered 503. 0 is no bound.",
    )
    relayed_offsets: OffsetPatterns = Field(
        default=("snapshot", "*_snapshot"),
        description='Offsets whose reads are relayed, because these offsets are not positions; "*" stands for any '
        "characters. The defaults are the offsets of Yjs servers.",
    )
    hit_for_miss_s: float = Field(
        default=120,
        ge=0,
        le=86_400,
        description="How long the gateway remembers that an answer cannot be shared (hit-for-miss). Until then, each "
        "request for it is relayed at once.",
    )
    compression: Codings = Field(
        default=("zstd", "br", "gzip"),
        description="Content codings of answers made from a tape, in order of preference; an empty list turns "
        "compression off.",
    )
    zstd_level: int = Field(
        default=3, ge=1, le=19, description="Compression level of zstd; each body is compressed once for all readers."
    )
    brotli_level: int = Field(
        default=4, ge=0, le=11, description="Compression level of br; above 6 it takes several times as long."
    )
    gzip_level: int = Field(
        default=4, ge=1, le=9, description="Compression level of gzip; 6 takes twice as long as the default."
    )

    @model_validator(mode="after")
    def _auth_is_of_streams(self) -> Self:
        if self.auth and self.protocol == "s2" and not self.is_bridged:
            raise MisfitError("can be set only for Durable Streams: S2 has its own access tokens", "auth")
        for name in (
            "conceal",
            "store_private",
            "client_credentials",
            "principal_header",
            "issuer_header",
            "tenant_header",
        ):
            if not self.auth and getattr(self, name) != RouteConfig.model_fields[name].default:
                raise MisfitError("has no effect without [[route.auth]]", name)
        return self

    @model_validator(mode="after")
    def _consistency_is_of_s2(self) -> Self:
        if self.protocol != "s2" and self.consistency != "linearizable":
            raise MisfitError('can be set only with protocol = "s2"', "consistency")
        return self

    @model_validator(mode="after")
    def _bridge_is_of_s2(self) -> Self:
        if self.present == "durable-streams" and self.protocol != "s2":
            raise MisfitError('can be set only with protocol = "s2"', "present")
        if self.bridge not in (None, BridgeConfig()) and self.present != "durable-streams":
            raise MisfitError('can be set only with present = "durable-streams"', "bridge")
        if self.is_bridged and self.consistency != "linearizable":
            raise MisfitError(
                'can be set only for S2 clients; with present = "durable-streams", set tail', "consistency"
            )
        return self

    @property
    def is_bridged(self) -> bool:
        """Whether S2 streams are presented as Durable Streams."""
        return self.present == "durable-streams"

    @property
    def bridging(self) -> BridgeConfig:
        """The settings of the bridge; the defaults if there are none."""
        return self.bridge or BridgeConfig()

    @model_validator(mode="after")
    def _asked_is_asked(self) -> Self:
        if self.tail == "asked" and self.tail_fresh_s:
            raise MisfitError(
                'can be set only with tail = "followed": with "asked", no tail is served twice', "tail_fresh_s"
            )
        return self

    @model_validator(mode="after")
    def _origins_agree(self) -> Self:
        if self.origin is None and not self.origins:
            raise MisfitError("is required and has no default (or a list, origins)", "origin")
        if self.origin is not None and self.origins:
            raise MisfitError("is set together with origin: set only one", "origins")
        seen: set[tuple[object, ...]] = set()
        for index, one in enumerate(self.origins):
            # A URL without a port names the same server as the URL with the scheme's default port.
            parts = urlsplit(one.url)
            server = parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme]
            if server in seen:
                raise MisfitError(f"{one.url} is listed twice: give it a weight instead", "origins", index, "url")
            seen.add(server)
        path = urlsplit(self.members[0].url).path
        lists = (("origins", [one.url for one in self.origins]), ("leaders", self.leaders))
        for name, urls in lists:
            for index, url in enumerate(urls):
                if urlsplit(url).path != path:
                    text = (
                        f"{url} has another path than {self.members[0].url}: a stream has the same path at all origins"
                    )
                    raise MisfitError(text, name, index, *(["url"] if name == "origins" else []))
        return self

    @property
    def members(self) -> tuple[OriginConfig, ...]:
        """The route's origins, with one entry if `origin` is set."""
        return self.origins if self.origin is None else (OriginConfig(url=self.origin),)

    @property
    def authorities(self) -> tuple[str, ...]:
        """Scheme, host and port of the route's origins and leaders, without default ports."""
        return tuple(str(URL(url).origin()) for url in (*(one.url for one in self.members), *self.leaders))

    @model_validator(mode="after")
    def _partition_needs_headers(self) -> Self:
        if self.credentials == "partition" and not self.credential_headers:
            raise MisfitError(
                'needs a header with credentials = "partition": otherwise all requests share a tape',
                "credential_headers",
            )
        return self

    @property
    def key(self) -> str:
        """The name as environment variables spell it."""
        return self.name.upper().replace("-", "_")
