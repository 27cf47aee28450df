"""The configuration of basins and streams, and its JSON.

JSON from clients is partial: a field that is left out keeps its value, and null resets it to the default.  The stored
configuration, and the JSON sent to clients, is always complete.  Malformed JSON is refused with 400, an invalid value
with 422.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, TypeGuard

from gateway.origin.s2.refusals import invalid, malformed

DEFAULT_RETENTION_S: Final = 7 * 86_400

_STORAGE_CLASSES: Final = frozenset({"standard", "express"})
_CIPHERS: Final = frozenset({"aegis-256", "aes-256-gcm"})

Json = Mapping[str, object]


class TimestampingMode(StrEnum):
    """How a record gets its timestamp."""

    CLIENT_PREFER = "client-prefer"
    """The client's timestamp, if the record has one."""
    CLIENT_REQUIRE = "client-require"
    """The client's timestamp.  A record without one is refused."""
    ARRIVAL = "arrival"


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """The complete configuration of a stream."""

    storage_class: str = "express"
    """The storage class.  It is returned to clients, but has no effect, because the origin keeps everything in memory.
    """
    retention_s: int | None = DEFAULT_RETENTION_S
    """The age in seconds at which records are removed; None keeps them."""
    mode: TimestampingMode = TimestampingMode.CLIENT_PREFER
    is_uncapped: bool = False
    """Whether a client's timestamp may be later than the record's arrival."""
    delete_on_empty_s: int = 0
    """Seconds after which an empty stream is deleted; 0 keeps it."""

    def changed(self, change: Json) -> StreamConfig:
        """Return this configuration with the fields of a client's JSON.  Raises Refused (400, 422)."""
        default = StreamConfig()
        config = self
        if "storage_class" in change:
            config = replace(config, storage_class=_storage_class(change["storage_class"], default.storage_class))
        if "retention_policy" in change:
            config = replace(config, retention_s=_retention_s(change["retention_policy"]))
        if "timestamping" in change:
            timestamping = _object(change["timestamping"], "timestamping")
            if timestamping is None:
                config = replace(config, mode=default.mode, is_uncapped=default.is_uncapped)
            else:
                if "mode" in timestamping:
                    config = replace(config, mode=_mode(timestamping["mode"]))
                if "uncapped" in timestamping:
                    config = replace(config, is_uncapped=_flag(timestamping["uncapped"], "uncapped"))
        if "delete_on_empty" in change:
            empty = _object(change["delete_on_empty"], "delete_on_empty") or {}
            config = replace(config, delete_on_empty_s=_whole(empty.get("min_age_secs"), "min_age_secs"))
        return config

    def to_json(self) -> dict[str, object]:
        """Return the JSON of S2's API."""
        json: dict[str, object] = {
            "storage_class": self.storage_class,
            "retention_policy": {"infinite": {}} if self.retention_s is None else {"age": self.retention_s},
            "timestamping": {"mode": self.mode, "uncapped": self.is_uncapped},
        }
        if self.delete_on_empty_s:
            json["delete_on_empty"] = {"min_age_secs": self.delete_on_empty_s}
        return json


@dataclass(frozen=True, slots=True)
class BasinConfig:
    """The complete configuration of a basin."""

    default_stream_config: StreamConfig = field(default_factory=StreamConfig)
    """The defaults for new streams."""
    creates_on_append: bool = False
    creates_on_read: bool = False
    stream_cipher: str | None = None
    """The cipher of new streams.  The origin does not encrypt, but asks for a key as S2 does."""

    def changed(self, change: Json) -> BasinConfig:
        """Return this configuration with the fields of a client's JSON.  Raises Refused (400, 422)."""
        config = self
        if "default_stream_config" in change:
            stream = _object(change["default_stream_config"], "default_stream_config")
            default = StreamConfig() if stream is None else self.default_stream_config.changed(stream)
            config = replace(config, default_stream_config=default)
        if "create_stream_on_append" in change:
            given = _flag(change["create_stream_on_append"], "create_stream_on_append")
            config = replace(config, creates_on_append=given)
        if "create_stream_on_read" in change:
            config = replace(config, creates_on_read=_flag(change["create_stream_on_read"], "create_stream_on_read"))
        if "stream_cipher" in change:
            config = replace(config, stream_cipher=_cipher(change["stream_cipher"]))
        return config

    def to_json(self) -> dict[str, object]:
        """Return the JSON of S2's API."""
        json: dict[str, object] = {
            "default_stream_config": self.default_stream_config.to_json(),
            "create_stream_on_append": self.creates_on_append,
            "create_stream_on_read": self.creates_on_read,
        }
        if self.stream_cipher is not None:
            json["stream_cipher"] = self.stream_cipher
        return json


def _object(value: object, name: str) -> Json | None:
    if value is not None and not isinstance(value, dict):
        raise malformed(f"{name} is not an object")
    return value


def _storage_class(value: object, default: str) -> str:
    if value is None:
        return default
    if not isinstance(value, str):
        raise malformed("storage_class is not a string")
    if value not in _STORAGE_CLASSES:
        raise invalid("storage_class is standard or express")
    return value


def _retention_s(value: object) -> int | None:
    policy = _object(value, "retention_policy")
    if policy is None:
        return DEFAULT_RETENTION_S
    if "infinite" in policy:
        return None
    age_s = policy.get("age")
    if not _is_whole(age_s):
        raise malformed("the retention policy is an age in whole seconds, or infinite")
    if age_s == 0:
        raise invalid("the retention age is above 0 seconds")
    return age_s


def _mode(value: object) -> TimestampingMode:
    if value is None:
        return TimestampingMode.CLIENT_PREFER
    try:
        return TimestampingMode(str(value))
    except ValueError:
        raise malformed("the timestamping mode is client-prefer, client-require or arrival") from None


def _flag(value: object, name: str) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool):
        raise malformed(f"{name} is true or false")
    return value


def _whole(value: object, name: str) -> int:
    if value is None:
        return 0
    if not _is_whole(value):
        raise malformed(f"{name} is a whole number of seconds")
    return value


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _cipher(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or value not in _CIPHERS:
        raise invalid("stream_cipher is aegis-256 or aes-256-gcm")
    return value
