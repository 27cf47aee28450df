"""The fields of a relayed reply, as its client gets them."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from multidict import CIMultiDict, istr

from gateway.http.passed_fields import Fields, PassedFields
from gateway.protocol.cache_status import Outcome, cache_status
from gateway.protocol.forwarded_headers import response_headers_for_client
from gateway.upstream.reply import Reply

_CACHE_STATUS: Final = istr("Cache-Status")
_SERVER: Final = istr("Server")
_VIA: Final = istr("Via")


def relayed_fields(node: str, reply: Reply, why_alone: str | None, *, by_method: bool) -> CIMultiDict[str]:
    """The reply's fields for its client, with those that the gateway `node` adds; in the lines that were received, if
    each of them may be passed on.

    `why_alone` is why a read was relayed although its route shares answers; `by_method` says that the request was no
    GET.
    """
    if reply.lines is not None:
        added = _added(node, reply.status, why_alone, by_method, _SERVER in reply.headers)
        return PassedFields.of(reply.headers, reply.lines, added)
    headers = response_headers_for_client(reply.headers, node=node, http_version="1.1")
    said = _said(node, reply.status, why_alone, by_method)
    if (earlier := headers.popall(_CACHE_STATUS, None)) is not None:
        said = ", ".join([*earlier, said])
    headers.add(_CACHE_STATUS, said)
    return headers


@lru_cache(256)
def _added(node: str, status: int, why_alone: str | None, by_method: bool, is_named: bool) -> Fields:
    """The fields that the gateway adds to a relayed reply with this status, which names its server or does not."""
    pairs = [(_VIA, f"1.1 {node}"), (_CACHE_STATUS, _said(node, status, why_alone, by_method))]
    return Fields.of(*pairs, *([] if is_named else [(_SERVER, node)]))


def _said(node: str, status: int, why_alone: str | None, by_method: bool) -> str:
    """The gateway's member of a relayed reply's Cache-Status."""
    return cache_status(node, Outcome.PASS, fwd_status=status, detail=why_alone, by_method=by_method)
