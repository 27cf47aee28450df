"""The rules that authorise a route's requests."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PlainSerializer, model_validator

from gateway.config.model import MisfitError, Model
from gateway.config.origins import OriginTlsConfig

Asymmetric = Literal[
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
]
"""Algorithms whose verifying key is public."""
Algorithm = Literal[Asymmetric, "HS256", "HS384", "HS512"]
_NAME: Final = re.compile(r"[A-Za-z0-9_.~-]{1,64}")
_PROTOCOL: Final = frozenset({"offset", "live", "cursor", "expires", "signature", "key"})
_MOST_CHARS: Final = 1_024


def _pattern(text: str) -> str:
    if not text.startswith("/") or len(text) > _MOST_CHARS or not text.isascii() or not text.isprintable():
        raise ValueError(f"expected a pattern of paths such as /rooms/* or /public/**, got {text[:80]!r}")
    return text


def _permission(text: str) -> str:
    names, _, pattern = text.strip().partition(" ")
    known = {"read", "append", "create", "close", "delete", "fork", "subscribe", "*"}
    if not pattern or not set(names.split(",")) <= known:
        raise ValueError(f"expected actions and a pattern such as 'read,append /rooms/*', got {text[:80]!r}")
    return f"{names} {_pattern(pattern.strip())}"


def _key_id(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"a key's id is 1 to 64 letters, digits, . _ ~ or -, got {text[:80]!r}")
    return text


def _parameter(text: str) -> str:
    if text and (not _NAME.fullmatch(text) or text in _PROTOCOL):
        raise ValueError(f"{text[:80]!r} is not a name for a query parameter, or is a parameter of the protocol")
    return text


def _url(text: str) -> str:
    if not text:
        return text
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.fragment:
        raise ValueError(f"expected a URL such as https://login.example.org/jwks.json, got {text[:80]!r}")
    if not text.isascii() or not text.isprintable() or " " in text or len(text) > _MOST_CHARS:
        raise ValueError(f"{text[:80]!r} is no URL")
    return text


def discovery_url(issuer: str) -> str:
    """Return the URL of an issuer's metadata (OpenID Connect Discovery 1.0 section 4)."""
    return f"{issuer.rstrip('/')}/.well-known/openid-configuration"


def _without_query(url: str) -> str:
    path, mark, _ = url.partition("?")
    return f"{path}?***" if mark else path


Url = Annotated[str, AfterValidator(_url), PlainSerializer(_without_query, when_used="json")]
"""A URL of a service.  `/api/config` leaves out its query, which may hold a secret."""
Patterns = Annotated[tuple[Annotated[str, AfterValidator(_pattern)], ...], Field(strict=False, max_length=64)]
Permissions = Annotated[tuple[Annotated[str, AfterValidator(_permission)], ...], Field(strict=False, max_length=64)]
Parameter = Annotated[str, AfterValidator(_parameter)]


class SigningKeyConfig(Model):
    """A key that signs URLs and cookies."""

    id: Annotated[str, AfterValidator(_key_id)] = Field(
        description="Id of the key; each signed URL names the id of its key."
    )
    file: str = Field(
        min_length=1, description="File with the key of at least 16 bytes. White space around the key is removed."
    )


_OF_JWT: Final = (
    "issuer",
    "audience",
    "keys_file",
    "keys_url",
    "tls",
    "algorithms",
    "any_type",
    "leeway_s",
    "cookie",
    "parameter",
    "permissions",
    "permissions_claim",
    "tenant_claim",
)
_OF_SIGNED: Final = ("keys",)
_OF_FORWARD: Final = (
    "url",
    "tls",
    "method",
    "request_headers",
    "parameter",
    "sends_target",
    "sends_client",
    "anonymous",
    "principal_from",
    "tenant_from",
    "permissions_from",
    "keep_s",
    "most_keep_s",
    "timeout_s",
)
_FIELD: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}")
_OF_CONNECTIONS: Final = frozenset(
    {
        *("accept-encoding", "connection", "content-encoding", "content-length", "expect", "forwarded", "host"),
        *("keep-alive", "stream-actions", "stream-forked-from", "te", "trailer", "transfer-encoding", "upgrade", "via"),
    }
)
"""The headers that the gateway itself sets, or that apply to one connection only."""


def _field_name(text: str) -> str:
    name = text.lower()
    if not _FIELD.fullmatch(name) or name in _OF_CONNECTIONS or name.startswith("x-forwarded-"):
        raise ValueError(f"{text[:80]!r} is not a header name, or names a header that the gateway sets itself")
    return name


def _field_name_or_none(text: str) -> str:
    return _field_name(text) if text else text


FieldName = Annotated[str, AfterValidator(_field_name)]
FieldNameOrNone = Annotated[str, AfterValidator(_field_name_or_none)]


class AuthRuleConfig(Model):
    """One rule of authorisation. The rules of a route are tried in order, and the first rule that applies to a
    request's credential decides. A request that no rule allows is refused."""

    by: Literal["jwt", "signed", "forward", "public"] = Field(
        description="jwt: a token of an issuer. signed: a URL or a cookie signed with a shared key. forward: a service "
        "that decides. public: reads without a credential."
    )
    streams: Patterns = Field(
        default=(),
        description='Paths that are public, with by = "public": * is one segment, ** at the end any number.',
    )
    issuer: str = Field(default="", max_length=_MOST_CHARS, description="The `iss` that tokens must have.")
    audience: tuple[str, ...] = Field(
        default=(), strict=False, max_length=16, description="Accepted values of `aud`; a token must have one of them."
    )
    keys_file: str = Field(
        default="", description="The issuer's keys: a JWK Set, or a public key in PEM. The file is read at each reload."
    )
    keys_url: Url = Field(
        default="",
        description="URL of the issuer's JWK Set, in place of keys_file; it is fetched again before the end of its "
        "Cache-Control max-age (1 minute to 1 day; 10 minutes if it states none). Without either, the URL is found by "
        "OpenID Connect Discovery below the issuer.",
    )
    tls: OriginTlsConfig | None = Field(
        default=None,
        description="TLS to the issuer or the service; absent: the system's authorities. The files are read at each "
        "reload.",
    )
    algorithms: Annotated[tuple[Algorithm, ...], Field(strict=False)] = Field(
        default=get_args(Asymmetric),
        description="Accepted algorithms. HS256, HS384 and HS512, whose keys can also sign, must be named here.",
    )
    any_type: bool = Field(
        default=False, description="Accept tokens whose `typ` is not at+jwt, as older issuers send them (RFC 9068)."
    )
    leeway_s: float = Field(
        default=30, ge=0, le=300, description="Tolerated difference of clocks in `exp`, `nbf` and `iat`."
    )
    cookie: str = Field(
        default="",
        description="Cookie that may carry the token or the signature, such as __Secure-streams. Writes with a cookie "
        "need an Origin that route.cors.allow_origins names.",
    )
    parameter: Parameter = Field(
        default="",
        description="Query parameter that may carry the token. Prefer a cookie or a signed URL: URLs are logged and "
        "passed on (RFC 9700 section 4.3.2).",
    )
    permissions: Permissions = Field(
        default=(),
        description="Permissions of all valid tokens, such as 'read /users/{sub}/**': actions, a space, a pattern. In "
        "the pattern, {claim} stands for a claim of the token.",
    )
    permissions_claim: str = Field(
        default="streams",
        max_length=64,
        description="Claim with the permissions of one token: a list of texts in the form of `permissions`. The claim "
        "`authorization_details` (RFC 9396) is always read.",
    )
    tenant_claim: str = Field(default="", max_length=64, description="Claim that names the tenant.")
    keys: tuple[SigningKeyConfig, ...] = Field(
        default=(), strict=False, max_length=16, description='Keys of signed URLs, with by = "signed".'
    )

    url: Url = Field(
        default="",
        description='URL of the service that decides, with by = "forward". A 2xx allows the request, a 401 or 403 '
        "refuses the request, and after any other answer the client gets a 503.",
    )
    method: Literal["GET", "POST", "HEAD"] = Field(default="GET", description="Method of requests to the service.")
    request_headers: Annotated[tuple[FieldName, ...], Field(strict=False, min_length=1, max_length=16)] = Field(
        default=("authorization", "cookie"),
        description="Request headers that are sent to the service. A request without any of these headers has no "
        "credential for the service.",
    )
    sends_target: bool = Field(
        default=True,
        description="Send the service the target of the request: X-Forwarded-Method, -Proto, -Host, -Uri (without "
        "offset, live and cursor), Stream-Actions and Stream-Forked-From. If false, one verdict applies to all streams "
        "that permissions_from allows.",
    )
    sends_client: bool = Field(
        default=False,
        description="Send the service the client's address as X-Forwarded-For. A verdict then applies to one address, "
        "and repeated reads are authorised each time.",
    )
    anonymous: bool = Field(default=False, description="Ask the service also about requests without a credential.")
    principal_from: FieldNameOrNone = Field(
        default="", description="Header of the service's answer that names the principal."
    )
    tenant_from: FieldNameOrNone = Field(
        default="", description="Header of the service's answer that names the tenant."
    )
    permissions_from: FieldNameOrNone = Field(
        default="",
        description="Header of the service's answer with permissions such as 'read /rooms/7; append /rooms/8'. A 2xx "
        "without this header allows only the requested actions.",
    )
    keep_s: float = Field(
        default=5,
        ge=0,
        le=3_600,
        description="How long a verdict without Cache-Control is kept. A refusal is kept for at most 1 s, unless the "
        "route conceals its streams.",
    )
    most_keep_s: float = Field(
        default=300,
        ge=0,
        le=86_400,
        description="Longest time that a verdict is kept, even if its Cache-Control states a longer time.",
    )
    timeout_s: float = Field(
        default=5, ge=0.05, le=60, description="Longest time for the service's answer, including the connection."
    )

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs to which the gateway sends requests for the rule."""
        if self.by == "forward":
            return (self.url,)
        if self.by != "jwt" or self.keys_file:
            return ()
        return (self.keys_url or discovery_url(self.issuer),)

    def _keys_fit(self) -> None:
        if not self.algorithms:
            raise MisfitError("is empty: no token would be accepted", "algorithms")
        if self.keys_file and self.keys_url:
            raise MisfitError("cannot be set together with keys_file", "keys_url")
        if self.keys_file and self.tls is not None:
            raise MisfitError("has no effect with keys_file", "tls")
        if not self.keys_file and not set(self.algorithms) <= set(get_args(Asymmetric)):
            raise MisfitError("names an algorithm with a shared secret, which needs keys_file", "algorithms")
        if not (self.keys_file or self.keys_url):
            try:
                is_url = bool(_url(self.issuer)) and "?" not in self.issuer
            except ValueError:
                is_url = False
            if not is_url:
                raise MisfitError("is needed, or keys_url is needed, because the issuer is not a URL", "keys_file")

    @model_validator(mode="after")
    def _fields_fit(self) -> Self:
        of = {
            "jwt": _OF_JWT,
            "signed": (*_OF_SIGNED, "cookie"),
            "forward": _OF_FORWARD,
            "public": ("streams",),
        }[self.by]
        for name in self.model_fields_set - {"by", *of}:
            raise MisfitError(f'has no effect with by = "{self.by}"', name)
        needed = {
            "jwt": ("issuer", "audience"),
            "signed": ("keys",),
            "forward": ("url",),
            "public": ("streams",),
        }[self.by]
        for name in needed:
            if not getattr(self, name):
                raise MisfitError(f'is needed with by = "{self.by}"', name)
        if self.by == "jwt":
            self._keys_fit()
        if not self.sends_target and not self.permissions_from:
            raise MisfitError(
                "is needed if sends_target is off, because the service does not know the target", "permissions_from"
            )
        if self.cookie and not self.cookie.startswith(("__Secure-", "__Host-")):
            raise MisfitError(
                "should begin with __Secure- or __Host-: other cookies may be sent over plain HTTP", "cookie"
            )
        ids = [key.id for key in self.keys]
        if len(set(ids)) < len(ids):
            raise MisfitError("names one key twice", "keys")
        return self
