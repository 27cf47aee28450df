"""Which JSON values fit a column, by the rules of Arrow's JSON reader.

Each rule is there twice: in regular expressions, `surely` and `surely_not`, which know most values, and in `is_met`,
which decides about all that they leave open.  Values are looked at in the text of messages that are JSON up to there;
whether they are valid tokens is the reader's to see.

    boolean             true, false
    integers            digits without fraction and exponent, within the type's range
    float, double       any number
    decimal(p, s)       a number of at most p digits, or such a text, that scale s holds without loss
    string              a text
    date, timestamp     a text in ISO 8601: a date, and perhaps a time to the hour, minute, second or microsecond, with
                        Z or a distance from UTC; dates without fractions of a second
    array, struct       an array all of whose elements fit; an object
"""

from __future__ import annotations

import json
import re
from calendar import monthrange
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

_NEXT: Final = rb"[ \t\r,}\]]"
_INTEGER: Final = re.compile(rb"(-?\d+)" + _NEXT)
_NUMBER: Final = re.compile(rb"([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,6}))?")
_TOKEN: Final = re.compile(rb"[^ \t\r\n,}\]]+")
_DATE: Final = rb"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])"
_TIME: Final = rb"[ T](?:[01]\d|2[0-3])(?::[0-5]\d"
_MOMENT: Final = re.compile(
    rb'"(\d{4})-(\d\d)-(\d\d)'
    rb'(?:[ T](\d\d)(?::(\d\d)(?::(\d\d)(\.\d{1,6})?)?)?(?:Z|[+-](\d\d)(?::?(\d\d))?)?)?"'
)
_ESCAPED: Final = re.compile(rb'"[^"]*\\')


_ANYTHING: Final = b""


def _never(text: bytes, at: int) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Fit:
    """The rule for one type.  The regular expressions are matched at a value, and may look at what follows it."""

    surely: bytes
    """Matches only what fits."""
    surely_not: bytes = _ANYTHING
    """Matches only what does not fit; looked at where neither `surely` matches nor null."""
    is_met: Callable[[bytes, int], bool] = _never
    """Whether the value at a position of the text fits, for all others."""


def fit_of(kind: pa.DataType) -> Fit:
    """The rule for a column of this type, which `formats.check_schema` has let pass."""
    if pa.types.is_struct(kind):
        return Fit(rb"\{")
    if pa.types.is_list(kind):
        return _fit_of_list(kind)
    if pa.types.is_boolean(kind):
        return Fit(rb"[tf]")
    if _is_text(kind):
        return Fit(rb'"')
    if pa.types.is_floating(kind):
        return Fit(rb"[-\dIN]")
    if pa.types.is_integer(kind):
        digits = rb"-?\d{1,%d}" % (len(str(1 << (kind.bit_width - 1))) - 1)
        return Fit(digits + _NEXT, rb'["\[{tfNI]|-?\d+[.eE]', lambda text, at: _fits_integer(kind, text, at))
    if pa.types.is_decimal(kind):
        whole = rb"-?\d{1,%d}" % (kind.precision - kind.scale) if kind.precision > kind.scale else rb"-?0"
        fraction = rb"(?:\.\d{1,%d})?" % kind.scale if kind.scale else rb""
        return Fit(whole + fraction + _NEXT, rb"[\[{tfNI]", lambda text, at: _fits_decimal_at(kind, text, at))
    if pa.types.is_timestamp(kind):
        time, excess = _TIME + rb"(?::[0-5]\d(?:\.\d{1,6})?)?)?Z?", rb"\.\d{7}"
    else:
        time, excess = _TIME + rb"(?::[0-5]\d)?)?Z?", rb"\."
    has_fraction = pa.types.is_timestamp(kind)
    return Fit(
        rb'"' + _DATE + rb"(?:" + time + rb')?"',
        rb'[^"]|"(?!\d{4}-\d\d-\d\d)[^"\\]*"|"[^"\\.]*' + excess + rb'[^"\\]*"',
        lambda text, at: _is_moment(text, at, has_fraction=has_fraction),
    )


def _fit_of_list(kind: pa.ListType) -> Fit:
    surely, surely_not = _surely_in_array(kind.value_type), rb"[^\[]"
    if not surely:
        whole = rb"\[[ \t\r]*\]"
    else:
        whole = rb"\[[ \t\r]*(?:" + surely + rb"(?:[ \t\r]*,[ \t\r]*" + surely + rb")*)?[ \t\r]*\]"
        first = rb'["\[{tf]'
        if _is_text(kind.value_type):
            first = rb"[-\d\[{tfNI]"
        elif pa.types.is_boolean(kind.value_type):
            first = rb'[-\d"\[{NI]'
        elif pa.types.is_decimal(kind.value_type):
            first = rb"[\[{tfNI]"
        elif pa.types.is_temporal(kind.value_type):
            first = rb"[-\d\[{tfNI]"
        surely_not += rb"|\[[ \t\r]*" + first
    return Fit(whole, surely_not, lambda text, at: _fits_decoded(kind, _decoded(text, at)))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _surely_in_array(kind: pa.DataType) -> bytes:
    """A regular expression for an element; empty if there is none that is cheaper than a parser."""
    if pa.types.is_nested(kind):
        return b""
    if _is_text(kind):
        return rb'"[^"\\]*"'
    if pa.types.is_boolean(kind):
        return rb"(?:true|false)"
    if pa.types.is_floating(kind):
        return rb"-?\d+(?:\.\d+)?"
    return fit_of(kind).surely.removesuffix(_NEXT)


def _decoded(text: bytes, at: int) -> Any:
    """The value at a position, with numbers as `_Number`; `_BROKEN` if there is none."""
    end = text.find(b"\n", at)
    try:
        return _NUMBERS.raw_decode(text[at:end].decode("utf-8", "replace"))[0]
    except (ValueError, RecursionError):
        return _BROKEN


class _Number(str):
    """A number as it is written."""


_BROKEN: Final = object()
_NUMBERS: Final = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_Number)


def _fits_decoded(kind: pa.DataType, value: Any) -> bool:
    if value is None:
        return True
    is_number, is_text = isinstance(value, _Number), isinstance(value, str) and not isinstance(value, _Number)
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return isinstance(value, dict) and all(_fits_decoded(field.type, value.get(field.name)) for field in fields)
    if pa.types.is_list(kind):
        return isinstance(value, list) and all(_fits_decoded(kind.value_type, one) for one in value)
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if _is_text(kind):
        return is_text
    if pa.types.is_floating(kind):
        return is_number
    if pa.types.is_integer(kind):
        return is_number and _fits_integer(kind, f"{value},".encode(), 0)
    if pa.types.is_decimal(kind):
        return isinstance(value, str) and _fits_decimal(kind, value)
    return is_text and _is_moment(json.dumps(value).encode(), 0, has_fraction=pa.types.is_timestamp(kind))


def _fits_integer(kind: pa.DataType, text: bytes, at: int) -> bool:
    found = _INTEGER.match(text, at)
    if found is None or len(found[1]) > 20:
        return False
    most = 1 << (kind.bit_width - 1)
    return bool(-most <= int(found[1]) < most)


def _fits_decimal_at(kind: pa.DataType, text: bytes, at: int) -> bool:
    if text[at : at + 1] == b'"':
        value = _decoded(text, at)
        return isinstance(value, str) and _fits_decimal(kind, value)
    found = _TOKEN.match(text, at)
    return found is not None and _fits_decimal(kind, found[0].decode("utf-8", "replace"))


def _fits_decimal(kind: pa.DataType, text: str) -> bool:
    found = _NUMBER.fullmatch(text.encode())
    if found is None:
        return False
    whole, fraction = found[2], found[3] or b""
    if not whole + fraction:
        return False
    precision = len(whole.lstrip(b"0")) + len(fraction)
    scale = len(fraction) - int(found[4] or 0)
    if scale < 0:
        precision, scale = precision - scale, 0
    if precision > kind.precision:
        return False
    unscaled = int(whole + fraction) * 10 ** max(int(found[4] or 0) - len(fraction), 0)
    if scale > kind.scale and unscaled % 10 ** (scale - kind.scale):
        return False
    return bool(unscaled < 10 ** (kind.precision - kind.scale + scale))


def _is_moment(text: bytes, at: int, *, has_fraction: bool) -> bool:
    found = _MOMENT.match(text, at)
    if found is None:
        if _ESCAPED.match(text, at) is None or not isinstance(value := _decoded(text, at), str):
            return False
        found = _MOMENT.fullmatch(f'"{value}"'.encode())
    if found is None or (found[7] is not None and not has_fraction):
        return False
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    away_h, away_m = (int(part or 0) for part in found.groups()[7:])
    return (
        1 <= month <= 12
        # The calendar repeats itself after 400 years, and has no year 0.
        and 1 <= day <= monthrange(year + 400, month)[1]
        and hour < 24
        and max(minute, second, away_m) < 60
        and away_h < 24
    )
