"""The control plane: basins, streams, access tokens, and the parts of locations and metrics that the SDKs need.

`control` is a plain function from a request to a reply, and the account is its only state.  Permissions are not
checked: any access token may do everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, TypeVar

import orjson

from gateway.origin.replies import Reply
from gateway.origin.s2.account import Account, Basin, Page, Provision
from gateway.origin.s2.calls import JSON_TYPE, Target, basin_of, json_object, page_of, request_token_of
from gateway.origin.s2.config import Json
from gateway.origin.s2.metrics import check_metrics_query
from gateway.origin.s2.names import BadName, check_basin_name, check_stream_name
from gateway.origin.s2.refusals import malformed
from gateway.origin.s2.stream import Stream

Item = TypeVar("Item")

LOCATION: Final = {
    "name": "memory",
    "is_private": False,
    "storage_classes": ["standard", "express"],
    "default_storage_class": "express",
}


def control(
    account: Account, target: Target, method: str, query: str, headers: Mapping[str, str], body: bytes, now: float
) -> Reply:
    """Answer a control call.  Raises Refused."""
    request_token = request_token_of(headers)
    match method, target.resource, target.names:
        case "GET", "basins", ():
            return _list("basins", map(_basin, (page := account.page(page_of(query))).items), page)
        case "POST", "basins", ():
            created = json_object(body)
            name = _new_name(created, "basin", check_basin_name)
            return _json(_basin(account.create_basin(name, _config(created), now, request_token)), 201)
        case "GET", "basins", (name,):
            return _json(account.basin(name).config.to_json())
        case "PUT", "basins", (name,):
            basin, provision = account.ensure_basin(name, _config(_optional_object(body)), now)
            return _provisioned(_basin(basin), provision)
        case "PATCH", "basins", (name,):
            return _json(account.reconfigure_basin(name, json_object(body)).config.to_json())
        case "DELETE", "basins", (name,):
            account.delete_basin(name)
            return Reply(202)
        case _, "streams", _:
            basin = account.basin(basin_of(headers))
            return _streams(basin, target, method, query, request_token, body, now)
        case "GET", "access-tokens", ():
            return _list("access_tokens", (page_ := account.token_page(page_of(query))).items, page_)
        case "POST", "access-tokens", ():
            return _json({"access_token": account.issue_token(json_object(body))}, 201)
        case "DELETE", "access-tokens", (name,):
            account.revoke_token(name)
            return Reply(204)
        case "GET", "locations", ():
            return _json([LOCATION])
        case "GET" | "PUT", "locations", ("default",):
            return _json(LOCATION)
        case "GET", "metrics", names:
            check_metrics_query(names, query, now)
            return _json({"values": []})
        case _:
            return Reply(405)


def _streams(
    basin: Basin, target: Target, method: str, query: str, request_token: str | None, body: bytes, now: float
) -> Reply:
    match method, target.names:
        case "GET", ():
            return _list("streams", map(_stream, (page := basin.page(page_of(query), now)).items), page)
        case "POST", ():
            created = json_object(body)
            name = _new_name(created, "stream", check_stream_name)
            return _json(_stream(basin.create_stream(name, _config(created), now, request_token)), 201)
        case "GET", (name,):
            return _json(basin.stream(name, now).config.to_json())
        case "PUT", (name,):
            stream, provision = basin.ensure_stream(name, _optional_object(body), now)
            return _provisioned(_stream(stream), provision)
        case "PATCH", (name,):
            return _json(basin.reconfigure_stream(name, json_object(body), now).config.to_json())
        case "DELETE", (name,):
            basin.delete_stream(name, now)
            return Reply(202)
        case _:
            return Reply(405)


def _optional_object(body: bytes) -> Json:
    return {} if body in (b"", b"null") else json_object(body)


def _new_name(fields: Json, field: str, check: Callable[[str], None]) -> str:
    name = fields.get(field)
    if not isinstance(name, str):
        raise malformed(f"{field} is not a string")
    try:
        check(name)
    except BadName as error:
        raise malformed(str(error)) from None
    return name


def _config(fields: Json) -> Json:
    config = fields.get("config")
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise malformed("config is not an object")
    return config


def _basin(basin: Basin) -> dict[str, object]:
    return {
        "name": basin.name,
        "location": LOCATION["name"],
        "created_at": _time(basin.created_at),
        "deleted_at": None,
        "state": "active",
    }


def _stream(stream: Stream) -> dict[str, object]:
    return {
        "name": stream.name,
        "created_at": _time(stream.created_at),
        "deleted_at": None,
        "cipher": stream.cipher,
    }


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status, {"content-type": JSON_TYPE, **(headers or {})}, orjson.dumps(value))


def _provisioned(info: dict[str, object], provision: Provision) -> Reply:
    status = 201 if provision is Provision.CREATED else 200
    return _json(info, status, {"s2-provision-result": provision})


def _list(name: str, items: Iterable[object], page: Page[Item]) -> Reply:
    return _json({name: list(items), "has_more": page.has_more})
