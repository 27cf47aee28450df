"""What S2's own integration tests ask of a server, one row for each of them, under the name of its Rust test.

`selection.md` says which tests S2's CI selects for its open-source server, and what covers each.  The rows send bare
requests, so that no SDK refuses or mends one.  Each row has a stream of its own, so that all rows can run at once.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from s2_sdk import (
    S2,
    AppendInput,
    CommandRecord,
    FencingTokenMismatchError,
    Record,
    S2ServerError,
    SeqNumMismatchError,
)

from tests.s2.edge.clients import Answer, Client

BASIN = "selection-basin"
"""A basin with the default configuration: it creates no streams by itself."""
MISSING = "no-such-stream"


@dataclass(frozen=True, slots=True)
class Here:
    """One row's client, and the stream with the row's name."""

    client: Client
    s2: S2
    name: str

    async def send(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        return await self.client.send(method, f"/v1/{path}", body, **{"s2_basin": BASIN, **headers})

    async def create(self, config: object = None, name: str = "") -> Answer:
        return await self.send("POST", "streams", {"stream": name or self.name, "config": config})

    async def config(self, name: str = "") -> Any:
        answer = await self.send("GET", f"streams/{name or self.name}")
        return answer.json if answer.status == 200 else refusal(answer)

    async def change(self, config: object, name: str = "") -> Any:
        answer = await self.send("PATCH", f"streams/{name or self.name}", config)
        return answer.json if answer.status == 200 else refusal(answer)

    async def listed(self, resource: str = "streams", **query: object) -> tuple[list[str], bool]:
        """The names in a list that are not deleted, and whether there are more."""
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        found: Any = (await self.send("GET", f"{resource}?{asked}")).json
        return [one["name"] for one in found[resource] if one["deleted_at"] is None], found["has_more"]

    async def append(self, *records: str | Mapping[str, object], name: str = "", **more: object) -> Any:
        """The acknowledgement of an append, or its refusal."""
        whole = [{"body": one} if isinstance(one, str) else one for one in records]
        answer = await self.send("POST", f"streams/{name or self.name}/records", {"records": whole, **more})
        return answer.json if answer.status == 200 else refusal(answer)

    async def read(self, query: str = "seq_num=0", name: str = "") -> Any:
        """The records of a read, or its refusal."""
        answer = await self.send("GET", f"streams/{name or self.name}/records?{query}")
        return answer.json["records"] if answer.status == 200 else refusal(answer)

    async def bodies(self, query: str = "seq_num=0") -> Any:
        """The bodies that a read finds, or its refusal."""
        found = await self.read(query)
        return [one.get("body", "") for one in found] if isinstance(found, list) else found

    async def tail(self, name: str = "") -> Any:
        answer = await self.send("GET", f"streams/{name or self.name}/records/tail")
        return answer.json["tail"] if answer.status == 200 else refusal(answer)


def refusal(answer: Answer) -> tuple[int, Any]:
    """The status and the code of an error, or what it says instead of a code."""
    said = answer.json
    return answer.status, said.get("code", said)


Row = Callable[[Here], Awaitable[None]]
ROWS: dict[str, Row] = {}
INVALID = (422, "invalid")
NO_STREAM = (404, "stream_not_found")
NO_BASIN = (404, "basin_not_found")


def row(function: Row) -> Row:
    ROWS[function.__name__] = function
    return function


def row_with_stream(function: Row) -> Row:
    """A row whose stream exists."""

    async def run(here: Here) -> None:
        assert (await here.create()).status == 201
        await function(here)

    ROWS[function.__name__] = run
    return function


def spans(ack: Any) -> tuple[int, int, int]:
    return ack["start"]["seq_num"], ack["end"]["seq_num"], ack["tail"]["seq_num"]


def metered(*bodies: str) -> int:
    return sum(8 + len(body) for body in bodies)


def command(name: str, body: str = "", *more: list[str]) -> dict[str, object]:
    return {"headers": [["", name], *more], "body": body}


def stamped(*bodies: str) -> tuple[list[dict[str, object]], int]:
    """Records of the last seconds, a millisecond apart, and the first timestamp."""
    first = int(time.time() * 1_000) - 10_000
    return [{"body": body, "timestamp": first + n} for n, body in enumerate(bodies)], first


# -- sdk/tests/stream_ops.rs: tails and appends


@row_with_stream
async def tail_of_new_stream(here: Here) -> None:
    assert await here.tail() == {"seq_num": 0, "timestamp": 0}


@row
async def tail_of_nonexistent_stream_errors(here: Here) -> None:
    assert await here.tail() == NO_STREAM


@row_with_stream
async def single_append(here: Here) -> None:
    assert spans(await here.append("a")) == (0, 1, 1)


@row_with_stream
async def multiple_appends(here: Here) -> None:
    assert [spans(await here.append(*some)) for some in ("a", "b", "cd")] == [(0, 1, 1), (1, 2, 2), (2, 4, 4)]


@row_with_stream
async def append_with_headers(here: Here) -> None:
    headers = [["k1", "v1"], ["k2", "v2"]]
    await here.append({"body": "a", "headers": headers})
    (found,) = await here.read()
    assert found["headers"] == headers


@row_with_stream
async def append_with_match_seq_num(here: Here) -> None:
    assert spans(await here.append("a", "b", match_seq_num=0)) == (0, 2, 2)
    assert spans(await here.append("c", match_seq_num=2)) == (2, 3, 3)


@row_with_stream
async def append_empty_body_record(here: Here) -> None:
    assert spans(await here.append("")) == (0, 1, 1)
    assert await here.bodies() == [""]


@row_with_stream
async def append_with_mismatched_seq_num_errors(here: Here) -> None:
    await here.append("a")
    assert await here.append("b", match_seq_num=0) == (412, {"seq_num_mismatch": 1})


@row_with_stream
async def append_session_with_mismatched_seq_num_errors(here: Here) -> None:
    session = here.s2.basin(BASIN).stream(here.name).append_session()
    first = await session.submit(AppendInput([Record(b"a")]))
    assert (await first).end.seq_num == 1
    second = await session.submit(AppendInput([Record(b"b")], match_seq_num=0))
    with pytest.raises(SeqNumMismatchError) as failed:
        await second
    assert failed.value.expected_seq_num == 1


@row_with_stream
async def append_session_with_mismatched_fencing_token_errors(here: Here) -> None:
    session = here.s2.basin(BASIN).stream(here.name).append_session()
    first = await session.submit(AppendInput([CommandRecord.fence("token")]))
    assert (await first).end.seq_num == 1
    second = await session.submit(AppendInput([Record(b"b")], fencing_token="other"))
    with pytest.raises(FencingTokenMismatchError) as failed:
        await second
    assert failed.value.expected_fencing_token == "token"


@row_with_stream
async def append_with_matching_fencing_token_succeeds(here: Here) -> None:
    await here.append(command("fence", "token"))
    assert spans(await here.append("a", fencing_token="token")) == (1, 2, 2)


@row_with_stream
async def append_with_mismatched_fencing_token_errors(here: Here) -> None:
    await here.append(command("fence", "token"))
    assert await here.append("a", fencing_token="other") == (412, {"fencing_token_mismatch": "token"})


@row_with_stream
async def append_with_empty_header_value(here: Here) -> None:
    headers = [["k1", ""], ["k2", ""]]
    await here.append({"body": "a", "headers": headers})
    assert (await here.read())[0]["headers"] == headers


@row_with_stream
async def append_mixed_records_with_and_without_headers(here: Here) -> None:
    one, two = [["k1", "v1"]], [["k2", ""], ["k3", "v3"]]
    await here.append({"body": "a", "headers": one}, {"body": "b", "headers": two}, "c")
    assert [found.get("headers", []) for found in await here.read()] == [one, two, []]


@row_with_stream
async def check_tail_after_multiple_appends(here: Here) -> None:
    await here.append("a")
    assert (await here.tail())["seq_num"] == 1
    await here.append("b", "c")
    assert (await here.tail())["seq_num"] == 3


@row_with_stream
async def append_record_batch_rejects_empty(here: Here) -> None:
    assert await here.append() == INVALID


@row_with_stream
async def append_record_batch_rejects_too_many_records(here: Here) -> None:
    assert await here.append(*["a"] * 1_001) == INVALID


@row_with_stream
async def append_record_rejects_too_large(here: Here) -> None:
    assert await here.append("a" * ((1 << 20) + 1)) == INVALID


@row_with_stream
async def fencing_token_rejects_too_long(here: Here) -> None:
    assert await here.append("a", fencing_token="x" * 37) == INVALID
    assert await here.append(command("fence", "x" * 37)) == INVALID


@row_with_stream
async def append_max_batch_size(here: Here) -> None:
    assert spans(await here.append(*["a"] * 1_000)) == (0, 1_000, 1_000)


@row_with_stream
async def append_with_client_timestamp(here: Here) -> None:
    records, first = stamped("a")
    assert (await here.append(*records))["start"]["timestamp"] == first


@row
async def append_without_timestamp_client_require_errors(here: Here) -> None:
    await here.create({"timestamping": {"mode": "client-require"}})
    assert await here.append("a") == INVALID


@row
async def append_with_future_timestamp_uncapped_false_caps(here: Here) -> None:
    await here.create({"timestamping": {"uncapped": False}})
    future = int(time.time() * 1_000) + 3_600_000
    assert (await here.append({"body": "a", "timestamp": future}))["start"]["timestamp"] < future


@row
async def append_with_future_timestamp_uncapped_true_preserves(here: Here) -> None:
    await here.create({"timestamping": {"uncapped": True}})
    future = int(time.time() * 1_000) + 3_600_000
    assert (await here.append({"body": "a", "timestamp": future}))["start"]["timestamp"] == future


@row_with_stream
async def append_with_past_timestamp_adjusts_monotonic(here: Here) -> None:
    records, first = stamped("a")
    await here.append(*records)
    assert (await here.append({"body": "b", "timestamp": first - 10}))["start"]["timestamp"] >= first


@row
async def append_to_nonexistent_stream_errors(here: Here) -> None:
    assert await here.append("a") == NO_STREAM


@row_with_stream
async def append_invalid_command_header_errors(here: Here) -> None:
    assert await here.append(command("not-a-command", "a")) == INVALID


@row_with_stream
async def append_invalid_command_header_with_extra_headers_errors(here: Here) -> None:
    assert await here.append(command("fence", "a", ["extra", "value"])) == INVALID


@row_with_stream
async def fence_set_and_clear_token(here: Here) -> None:
    await here.append(command("fence", "token"))
    assert spans(await here.append(command("fence"))) == (1, 2, 2)
    assert spans(await here.append("a", fencing_token="")) == (2, 3, 3)


@row_with_stream
async def trim_command_is_accepted(here: Here) -> None:
    await here.append("a", "b", "c")
    trim = {"headers": [["", "trim"]], "body": (2).to_bytes(8).decode()}
    assert spans(await here.append(trim)) == (3, 4, 4)


@row_with_stream
async def trim_to_future_seq_num_noop(here: Here) -> None:
    await here.append("a")
    trim = {"headers": [["", "trim"]], "body": (99).to_bytes(8).decode()}
    assert spans(await here.append(trim)) == (1, 2, 2)
    assert (await here.tail())["seq_num"] == 2


@row_with_stream
async def append_session_close_delivers_all_acks(here: Here) -> None:
    session = here.s2.basin(BASIN).stream(here.name).append_session()
    tickets = [await session.submit(AppendInput([Record(one.encode()) for one in some])) for some in ("ab", "c", "d")]
    await session.close()
    acks = [await ticket for ticket in tickets]
    assert [(ack.start.seq_num, ack.end.seq_num) for ack in acks] == [(0, 2), (2, 3), (3, 4)]


@row_with_stream
async def batch_submit_ticket_drop_should_not_affect_others(here: Here) -> None:
    session = here.s2.basin(BASIN).stream(here.name).append_session()
    await session.submit(AppendInput([Record(b"a"), Record(b"b")]))
    ticket = await session.submit(AppendInput([Record(b"c")]))
    await session.close()
    assert (await ticket).start.seq_num == 2


@row
async def append_session_for_non_existent_stream_errors(here: Here) -> None:
    session = here.s2.basin(BASIN).stream(here.name).append_session()
    ticket = await session.submit(AppendInput([Record(b"a")]))
    with pytest.raises(S2ServerError) as failed:
        await ticket
    assert failed.value.code == "stream_not_found"


@row
async def create_stream_inherits_basin_default_config(here: Here) -> None:
    default = {
        "storage_class": "standard",
        "retention_policy": {"age": 3_600},
        "delete_on_empty": {"min_age_secs": 3_600},
    }
    basin = "basin-with-a-default"
    await here.send("POST", "basins", {"basin": basin, "config": {"default_stream_config": default}})
    await here.send("POST", "streams", {"stream": here.name}, s2_basin=basin)
    found: Any = (await here.send("GET", f"streams/{here.name}", s2_basin=basin)).json
    assert {name: found[name] for name in default} == default
