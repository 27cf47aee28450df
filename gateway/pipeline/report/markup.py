"""HTML that is put together from pieces, so that nothing that came from the network can ever be markup.

`Html` is text that is markup already; only this module makes it out of untrusted text.  `element` escapes every child
and every attribute that is not `Html`: stream names, user agents, clients, routes and reasons are untrusted.  Control
characters, and those that change the direction of text, are shown by their number.
"""

from __future__ import annotations

import re
from typing import Final

Attribute = str | int | float | bool | None
Child = object
"""Html, text or a number; None and False are left out; lists and tuples are gone through."""

_VOID: Final = frozenset({"meta", "br", "link"})
_ODD: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})


class Html(str):
    """Text that is markup, to be written as it is."""

    __slots__ = ()


def escaped(text: str) -> Html:
    """Any text, harmless between tags and in a quoted attribute."""
    return Html(shown(text).translate(_ESCAPES))


def shown(text: str) -> str:
    """Text with what cannot be seen, or changes how the rest is seen, spelled as `\\u202e`."""
    return _ODD.sub(lambda odd: f"\\u{ord(odd[0]):04x}", text)


def joined(children: Child) -> Html:
    """Children in their order, with nothing between them."""
    if isinstance(children, Html):
        return children
    if children is None or children is False:
        return Html("")
    if isinstance(children, (list, tuple)):
        return Html("".join(joined(child) for child in children))
    return escaped(str(children))


def element(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """An element.  `class_` is `class`, `_` in an attribute's name is `-`; None and False leave the attribute out."""
    text = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{joined(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{text}>" if name in _VOID else f"<{name}{text}>{joined(children)}</{name}>")
