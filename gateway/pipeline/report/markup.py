"""Compose HTML so that no text from the network can become markup.

Stream names, user agents, clients, routes and reasons are untrusted.  `Html` is text that is markup already.  Only this
module turns untrusted text into `Html`.  `element` escapes every child and every attribute that is not `Html`.  Control
characters, and characters that change the direction of text, are shown as their numbers.
"""

from __future__ import annotations

import re
from typing import Final

Child = object
"""Content of an element: Html, text or a number.  None is left out; lists and tuples are flattened."""

_ODD: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})


class Html(str):
    """Text that is markup already, and is not escaped."""

    __slots__ = ()


def escaped(text: str) -> Html:
    """Escape untrusted text for use between tags and in a quoted attribute."""
    return Html(shown(text).translate(_ESCAPES))


def shown(text: str) -> str:
    """Replace characters that are invisible, or that change how other characters are shown, by their numbers."""
    return _ODD.sub(lambda odd: f"\\u{ord(odd[0]):04x}", text)


def joined(children: Child) -> Html:
    """Join children in order, with nothing between them."""
    if isinstance(children, Html):
        return children
    if children is None:
        return Html("")
    if isinstance(children, (list, tuple)):
        return Html("".join(joined(child) for child in children))
    return escaped(str(children))


def element(name: str, /, *children: Child, **attributes: str | None) -> Html:
    """Return an element with an end tag.

    `class_` stands for `class`, and `_` within an attribute's name for `-`.  An attribute that is None is left out.
    """
    text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{joined(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{text}>{joined(children)}</{name}>")
