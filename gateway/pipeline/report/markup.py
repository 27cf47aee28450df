"""HTML composed from pieces, so that no text from the network can become markup.

`Html` is text that is markup already; only this module makes it from untrusted text.  `element` escapes every child and
every attribute that is not `Html`: stream names, user agents, clients, routes and reasons are untrusted.  Control
characters, and characters that change the direction of text, are shown by their number.
"""

from __future__ import annotations

import re
from typing import Final

Child = object
"""Html, text or a number; None is left out; lists and tuples are flattened."""

_ODD: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})


class Html(str):
    """Text that is markup and is written as it is."""

    __slots__ = ()


def escaped(text: str) -> Html:
    """Untrusted text, escaped for use between tags and in a quoted attribute."""
    return Html(shown(text).translate(_ESCAPES))


def shown(text: str) -> str:
    """Text in which characters that are invisible, or change how others are shown, are written by their number."""
    return _ODD.sub(lambda odd: f"\\u{ord(odd[0]):04x}", text)


def joined(children: Child) -> Html:
    """Children in order, with nothing between them."""
    if isinstance(children, Html):
        return children
    if children is None:
        return Html("")
    if isinstance(children, (list, tuple)):
        return Html("".join(joined(child) for child in children))
    return escaped(str(children))


def element(name: str, /, *children: Child, **attributes: str | None) -> Html:
    """An element with an end tag.  `class_` is `class`, `_` in an attribute's name is `-`; None leaves it out."""
    text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{joined(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{text}>{joined(children)}</{name}>")
