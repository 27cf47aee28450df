"""Which JSON values fit a column, by the rules of Arrow's JSON reader.

Each rule is there twice: as first bytes and regular expressions, which are matched for whole columns and know most
values, and as `is_met`, which decides about the few that these leave open.  Values are looked at in the text of
messages that are JSON up to there; whether they are valid tokens is the reader's to see.

    boolean             true, false
    integers            digits without fraction and exponent, within the type's range
    float, double       any number
    decimal(p, s)       a number of at most p digits, or such a text, that scale s holds without loss
    string              a text
    date, timestamp     a text in ISO 8601: a date, and perhaps a time to the hour, minute, second or microsecond, with
                        Z or a distance from UTC; dates without fractions of a second
    array, struct       an array all of whose elements fit; an object

A timestamp with seven to nine digits of a second does not fit, but fits without the last of them (`shortened`).

Arrow's reader refuses two kinds of JSON wherever they are: numbers with an exponent that no double has, and halves of
surrogate pairs.  `strictly` gives the rules for messages that may have them (`extremes`).
"""

from __future__ import annotations

import json
import re
from calendar import monthrange
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_durable_streams.extremes import is_beyond_double

_DIGITS: Final = b"0123456789"
NEXT: Final = r"[ \t\r,}\]]"
"""Matches what may follow a value."""
_DATE: Final = r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])"
_TIME: Final = r"[ T](?:[01]\d|2[0-3])(?::[0-5]\d"
_MOMENT: Final = (
    r'"(\d{4})-(\d\d)-(\d\d)'
    r'(?:[ T](\d\d)(?::(\d\d)(?::(\d\d)(\.\d{1,6})?)?)?(?:Z|[+-](\d\d)(?::?(\d\d))?)?)?"'
)
_ESCAPED: Final = r'"[^"]*\\'
_IS_INTEGER: Final = re.compile(rf"(-?\d+){NEXT}".encode())
_IS_NUMBER: Final = re.compile(rb"([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,6}))?")
_IS_TOKEN: Final = re.compile(rb"[^ \t\r\n,}\]]+")
_IS_MOMENT: Final = re.compile(_MOMENT.encode())
_IS_ESCAPED: Final = re.compile(_ESCAPED.encode())
_IS_LONG: Final = re.compile(r'("[^"\\]*\.\d{6})(\d{1,3})((?:Z|[+-][\d:]+)?")')
"""A time with seven to nine digits of a second."""


def _never(text: bytes, at: int) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Fit:
    """The rule for one type.  The regular expressions are matched at a value, and may look at what follows it."""

    first: bytes
    """The bytes that a value which fits may begin with; null fits always."""
    surely: str = ""
    """Matches only what fits, if `NEXT` follows; empty if all values fit that begin so."""
    perhaps: str = ""
    """Matches all other values that fit."""
    is_met: Callable[[bytes, int], bool] = _never
    """Whether a value that only `perhaps` matches fits, by its position in the text."""
    shortened: Callable[[bytes, int], bytes | None] | None = None
    """For a value that does not fit, by its position: a text of the same length that does, or None without one."""

    @property
    def may_begin(self) -> npt.NDArray[np.bool_]:
        """For each byte, whether a value that fits may begin with it."""
        found = np.zeros(256, np.bool_)
        found[list(self.first + b"n")] = True
        return found


def fit_of(kind: pa.DataType) -> Fit:
    """The rule for a column of this type, which `formats.check_schema` has let pass."""
    if pa.types.is_struct(kind):
        return Fit(b"{")
    if pa.types.is_list(kind):
        return _fit_of_list(kind)
    if pa.types.is_boolean(kind):
        return Fit(b"tf")
    if _is_text(kind):
        return Fit(b'"')
    if pa.types.is_floating(kind):
        return Fit(_DIGITS + b"-IN")
    if pa.types.is_integer(kind):
        digits = len(str(1 << (kind.bit_width - 1)))
        return Fit(
            _DIGITS + b"-",
            rf"-?\d{{1,{digits - 1}}}",
            rf"-?\d{{{digits},20}}{NEXT}",
            lambda text, at: _fits_integer(kind, text, at),
        )
    if pa.types.is_decimal(kind):
        whole = rf"-?\d{{1,{kind.precision - kind.scale}}}" if kind.precision > kind.scale else "-?0"
        number = whole + (rf"(?:\.\d{{1,{kind.scale}}})?" if kind.scale else "")
        return Fit(
            _DIGITS + b'-"',
            rf'{number}|"{number}"',
            rf'"|-?[\d.]+(?:[eE]|0{NEXT})',
            lambda text, at: _fits_decimal_at(kind, text, at),
        )
    has_fraction = _is_timed(kind)
    fraction = r"(?:\.\d{1,6})?" if has_fraction else ""
    return Fit(
        b'"',
        rf'"{_DATE}(?:{_TIME}(?::[0-5]\d{fraction})?)?Z?)?"',
        f"{_MOMENT}|{_ESCAPED}",
        lambda text, at: _is_moment(text, at, has_fraction=has_fraction),
        (lambda text, at: _shortened(kind, text, at)) if has_fraction else None,
    )


def strictly(kind: pa.DataType) -> Fit:
    """The rule for a column of this type in messages that may have numbers or texts which Arrow cannot represent."""
    if _is_text(kind):
        # Half of a surrogate pair begins like a whole one.
        surely = r'"(?:[^"\\]|\\[^u]|\\u[^dD]|\\u[dD][0-7])*"'
        return Fit(b'"', surely, r'"', lambda text, at: _fits_decoded(kind, _decoded(text, at)))
    if pa.types.is_floating(kind):
        fit = fit_of(kind)
        surely = r"-?\d+(?:\.\d+)?"
        return Fit(fit.first, surely, r"[-\dIN]", lambda text, at: _fits_decoded(kind, _decoded(text, at)))
    if pa.types.is_list(kind):
        # No element is known from a regular expression alone.
        return replace(fit_of(kind), surely=r"\[[ \t\r]*\]")
    return fit_of(kind)


def _fit_of_list(kind: pa.ListType) -> Fit:
    one, space = _surely_in_array(kind.value_type), r"[ \t\r]*"
    elements = f"(?:(?:{one})(?:{space},{space}(?:{one}))*)?" if one else ""
    first = re.escape(fit_of(kind.value_type).first.decode())
    return Fit(
        b"[",
        rf"\[{space}{elements}{space}\]",
        rf"\[{space}[n{first}]",
        lambda text, at: _fits_decoded(kind, _decoded(text, at)),
        (lambda text, at: _shortened(kind, text, at)) if _is_timed(kind) else None,
    )


def _is_timed(kind: pa.DataType) -> bool:
    """Whether all texts in a value are timestamps."""
    return bool(pa.types.is_timestamp(kind) or (pa.types.is_list(kind) and _is_timed(kind.value_type)))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _surely_in_array(kind: pa.DataType) -> str:
    """A regular expression for an element; empty if there is none that is cheaper than a parser."""
    if _is_text(kind):
        return r'"[^"\\]*"'
    if pa.types.is_boolean(kind):
        return "true|false"
    if pa.types.is_floating(kind):
        return r"-?\d+(?:\.\d+)?"
    return "" if pa.types.is_nested(kind) else fit_of(kind).surely


def _decoded(text: bytes, at: int) -> Any:
    """The value at a position, with numbers as `_Number`; `_BROKEN` if there is none."""
    end = text.find(b"\n", at)
    try:
        return _NUMBERS.raw_decode(text[at:end].decode("utf-8", "replace"))[0]
    except (ValueError, RecursionError):
        return _BROKEN


def _shortened(kind: pa.DataType, text: bytes, at: int) -> bytes | None:
    """The value at a position with times cut to microseconds and spaces behind them; None if even that does not fit."""
    line = text[at : text.find(b"\n", at)].decode("utf-8", "replace")
    try:
        _, end = _NUMBERS.raw_decode(line)
    except (ValueError, RecursionError):
        return None
    cut = _IS_LONG.sub(lambda found: f"{found[1]}{found[3]}{' ' * len(found[2])}", line[:end])
    return cut.encode() if _fits_decoded(kind, _decoded(f"{cut}\n".encode(), 0)) else None


class _Number(str):
    """A number as it is written."""


_BROKEN: Final = object()
_IS_HALF: Final = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair: the decoder has joined the others."""
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
        return is_text and not _IS_HALF.search(value)
    if pa.types.is_floating(kind):
        return is_number and not is_beyond_double(value)
    if pa.types.is_integer(kind):
        return is_number and _fits_integer(kind, f"{value},".encode(), 0)
    if pa.types.is_decimal(kind):
        return isinstance(value, str) and _fits_decimal(kind, value)
    return is_text and _is_moment(json.dumps(value).encode(), 0, has_fraction=pa.types.is_timestamp(kind))


def _fits_integer(kind: pa.DataType, text: bytes, at: int) -> bool:
    found = _IS_INTEGER.match(text, at)
    if found is None or len(found[1]) > 20:
        return False
    most = 1 << (kind.bit_width - 1)
    return bool(-most <= int(found[1]) < most)


def _fits_decimal_at(kind: pa.DataType, text: bytes, at: int) -> bool:
    if text[at : at + 1] == b'"':
        value = _decoded(text, at)
        return isinstance(value, str) and _fits_decimal(kind, value)
    found = _IS_TOKEN.match(text, at)
    return found is not None and _fits_decimal(kind, found[0].decode("utf-8", "replace"))


def _fits_decimal(kind: pa.DataType, text: str) -> bool:
    found = _IS_NUMBER.fullmatch(text.encode("utf-8", "replace"))
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
    found = _IS_MOMENT.match(text, at)
    if found is None:
        if _IS_ESCAPED.match(text, at) is None or not isinstance(value := _decoded(text, at), str):
            return False
        found = _IS_MOMENT.fullmatch(f'"{value}"'.encode("utf-8", "replace"))
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
