"""Records in JSON (S2's data-plane page, "Data in JSON").

Bodies, header names and header values are bytes.  The request's `s2-format` header states how JSON strings represent
them.  `raw` is UTF-8; encoding replaces invalid bytes by U+FFFD.  `base64` (RFC 4648 section 4, padded) is exact.  A
header is an array of its name and its value.  Empty bodies, empty lists of headers and absent tails are left out.
Unknown members are ignored.  The answer to a tail check and the bodies of 412 and 416 do not depend on the format.

Numbers are unsigned 64-bit integers in integer notation: `1.0` is not valid.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import orjson

from gateway.s2.records import (
    MAX_BATCH_HEADERS,
    MAX_BATCH_RECORDS,
    MAX_U64,
    AppendAck,
    AppendInput,
    AppendRecord,
    Header,
    ReadBatch,
    Record,
    StreamPosition,
)

CONTENT_TYPE: Final = "application/json"

FORMAT_HEADER: Final = "s2-format"


class Format(StrEnum):
    """How JSON strings represent bytes: the values of the `s2-format` header."""

    RAW = "raw"
    BASE64 = "base64"


_FORMATS: Final = {
    "raw": Format.RAW,
    "base64": Format.BASE64,
    # The names used by older clients, which S2's server still accepts.
    "json": Format.RAW,
    "json-binsafe": Format.BASE64,
}


class BadFormat(ValueError):
    """An `s2-format` header has an unknown value (400 `bad_header`)."""


class BadJson(ValueError):
    """The bytes are not JSON, or not of the expected form (400 `bad_json`)."""


class InvalidJson(BadJson):
    """A string is not base64 although the request states this format, or there are too many records or headers (422
    `invalid`)."""


def parse_format(value: str | None) -> Format:
    """Parse an `s2-format` header; raw if there is none.  Raises `BadFormat`."""
    if value is None:
        return Format.RAW
    found = _FORMATS.get(value.strip())
    if found is None:
        raise BadFormat(f"{FORMAT_HEADER} is raw or base64")
    return found


def decode_append_input(data: bytes, format_: Format) -> AppendInput:
    """Decode the body of an append.  Raises `BadJson`."""
    fields = _object(_loads(data), "the body")
    token = fields.get("fencing_token")
    if token is not None and not isinstance(token, str):
        raise BadJson("fencing_token is not a string")
    return AppendInput(
        tuple(_append_record(record, format_) for record in _records(fields)),
        _optional_number(fields, "match_seq_num"),
        token,
    )


def encode_append_input(append: AppendInput, format_: Format) -> bytes:
    """Encode the body of an append."""
    fields: dict[str, object] = {"records": [_append_fields(record, format_) for record in append.records]}
    if append.match_seq_num is not None:
        fields["match_seq_num"] = append.match_seq_num
    if append.fencing_token is not None:
        fields["fencing_token"] = append.fencing_token
    return orjson.dumps(fields)


def decode_append_ack(data: bytes) -> AppendAck:
    """Decode the answer to an append.  Raises `BadJson`."""
    fields = _object(_loads(data), "the body")
    return AppendAck(_position(fields, "start"), _position(fields, "end"), _position(fields, "tail"))


def encode_append_ack(ack: AppendAck) -> bytes:
    """Encode the answer to an append."""
    return orjson.dumps({"start": _place(ack.start), "end": _place(ack.end), "tail": _place(ack.tail)})


def decode_read_batch(data: bytes, format_: Format) -> ReadBatch:
    """Decode the answer to a unary read, or the data of an SSE batch.  Raises `BadJson`."""
    fields = _object(_loads(data), "the body")
    records = tuple(_record(record, format_) for record in _records(fields))
    return ReadBatch(records, None if fields.get("tail") is None else _position(fields, "tail"))


def encode_read_batch(batch: ReadBatch, format_: Format) -> bytes:
    """Encode the answer to a unary read, or the data of an SSE batch, as one line."""
    fields: dict[str, object] = {"records": [_record_fields(record, format_) for record in batch.records]}
    if batch.tail is not None:
        fields["tail"] = _place(batch.tail)
    return orjson.dumps(fields)


def encode_record(record: Record, format_: Format) -> bytes:
    """Encode one record as one line, for tools that print records."""
    return orjson.dumps(_record_fields(record, format_))


def decode_tail(data: bytes) -> StreamPosition:
    """Decode the answer to a tail check, or the body of a 416.  Raises `BadJson`."""
    return _position(_object(_loads(data), "the body"), "tail")


def encode_tail(tail: StreamPosition) -> bytes:
    """Encode the answer to a tail check, or the body of a 416."""
    return orjson.dumps({"tail": _place(tail)})


# -- values into JSON


def _append_fields(record: AppendRecord, format_: Format) -> dict[str, object]:
    fields = _payload_fields(record.headers, record.body, format_)
    return fields if record.timestamp is None else {"timestamp": record.timestamp} | fields


def _record_fields(record: Record, format_: Format) -> dict[str, object]:
    return {"seq_num": record.seq_num, "timestamp": record.timestamp} | _payload_fields(
        record.headers, record.body, format_
    )


def _payload_fields(headers: Sequence[Header], body: bytes, format_: Format) -> dict[str, object]:
    fields: dict[str, object] = {}
    if headers:
        fields["headers"] = [[_text(header.name, format_), _text(header.value, format_)] for header in headers]
    if body:
        fields["body"] = _text(body, format_)
    return fields


def _text(data: bytes, format_: Format) -> str:
    if format_ is Format.RAW:
        return data.decode("utf-8", "replace")
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def _place(position: StreamPosition) -> dict[str, int]:
    return {"seq_num": position.seq_num, "timestamp": position.timestamp}


# -- JSON into values


def _loads(data: bytes) -> object:
    try:
        value: object = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadJson("the body is not JSON") from error
    return value


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadJson(f"{name} is not a JSON object")
    return value


def _array(value: object, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadJson(f"{name} is not a JSON array")
    return value


def _records(fields: dict[str, Any]) -> list[Any]:
    records = _array(fields.get("records"), "records")
    # Check the number of records before objects are created.
    if len(records) > MAX_BATCH_RECORDS:
        raise InvalidJson(f"a batch has at most {MAX_BATCH_RECORDS} records")
    headers = (record.get("headers") for record in records if isinstance(record, dict))
    if sum(len(of_record) for of_record in headers if isinstance(of_record, list)) > MAX_BATCH_HEADERS:
        raise InvalidJson(f"a batch has at most {MAX_BATCH_HEADERS} headers")
    return records


def _number(value: object, name: str) -> int:
    # Not `isinstance`, because True is an int.
    if type(value) is not int or not 0 <= value <= MAX_U64:
        raise BadJson(f"{name} is not an unsigned integer of 64 bits")
    return value


def _optional_number(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return None if value is None else _number(value, name)


def _position(fields: dict[str, Any], name: str) -> StreamPosition:
    position = _object(fields.get(name), name)
    return StreamPosition(
        _number(position.get("seq_num"), f"{name}.seq_num"), _number(position.get("timestamp"), f"{name}.timestamp")
    )


def _append_record(value: object, format_: Format) -> AppendRecord:
    fields = _object(value, "a record")
    return AppendRecord(_body(fields, format_), _headers(fields, format_), _optional_number(fields, "timestamp"))


def _record(value: object, format_: Format) -> Record:
    fields = _object(value, "a record")
    return Record(
        _number(fields.get("seq_num"), "seq_num"),
        _number(fields.get("timestamp"), "timestamp"),
        _headers(fields, format_),
        _body(fields, format_),
    )


def _body(fields: dict[str, Any], format_: Format) -> bytes:
    return _bytes(fields.get("body", ""), "body", format_)


def _headers(fields: dict[str, Any], format_: Format) -> tuple[Header, ...]:
    headers = []
    for pair in _array(fields.get("headers", []), "headers"):
        if not isinstance(pair, list) or len(pair) != 2:
            raise BadJson("a header is not an array of a name and a value")
        headers.append(
            Header(_bytes(pair[0], "a header's name", format_), _bytes(pair[1], "a header's value", format_))
        )
    return tuple(headers)


def _bytes(value: object, name: str, format_: Format) -> bytes:
    if not isinstance(value, str):
        raise BadJson(f"{name} is not a string")
    if format_ is Format.RAW:
        return value.encode()
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError as error:
        raise InvalidJson(f"{name} is not base64") from error
