from collections.abc import Callable

import pytest

from gateway.origin.s2.account import Account, Basin, PageQuery, Provision
from gateway.origin.s2.config import BasinConfig, Json, StreamConfig, TimestampingMode
from gateway.origin.s2.refusals import Refused
from gateway.s2.errors import S2ErrorCode
from tests.s2.origin.appends import NOW, bodies


@pytest.fixture
def account() -> Account:
    return Account()


@pytest.fixture
def basin(account: Account) -> Basin:
    return account.create_basin("basin-00", {}, NOW)


def refusal_of(act: Callable[[], object]) -> S2ErrorCode:
    with pytest.raises(Refused) as refused:
        act()
    return refused.value.code


def test_a_basin_exists_once_unless_the_same_request_creates_it_again(account: Account) -> None:
    first = account.create_basin("basin-00", {}, NOW, "token")

    assert account.create_basin("basin-00", {}, NOW, "token") is first
    assert refusal_of(lambda: account.create_basin("basin-00", {}, NOW, "other")) is S2ErrorCode.RESOURCE_ALREADY_EXISTS
    assert refusal_of(lambda: account.create_basin("basin-00", {}, NOW)) is S2ErrorCode.RESOURCE_ALREADY_EXISTS


def test_what_does_not_exist_is_not_found(account: Account, basin: Basin) -> None:
    assert refusal_of(lambda: account.basin("nothing-00")) is S2ErrorCode.BASIN_NOT_FOUND
    assert refusal_of(lambda: account.delete_basin("nothing-00")) is S2ErrorCode.BASIN_NOT_FOUND
    assert refusal_of(lambda: basin.stream("s", NOW)) is S2ErrorCode.STREAM_NOT_FOUND
    assert refusal_of(lambda: basin.delete_stream("s", NOW)) is S2ErrorCode.STREAM_NOT_FOUND
    assert refusal_of(lambda: account.revoke_token("t")) is S2ErrorCode.ACCESS_TOKEN_NOT_FOUND


def test_a_stream_inherits_what_its_configuration_leaves_out(account: Account) -> None:
    defaults: Json = {"default_stream_config": {"retention_policy": {"age": 9}, "timestamping": {"uncapped": True}}}
    basin = account.create_basin("basin-00", defaults, NOW)

    stream = basin.create_stream("s", {"timestamping": {"mode": "arrival"}}, NOW)

    assert stream.config == StreamConfig(retention_s=9, mode=TimestampingMode.ARRIVAL, is_uncapped=True)


def test_ensuring_says_whether_it_created_changed_or_found(account: Account, basin: Basin) -> None:
    infinite: Json = {"retention_policy": {"infinite": {}}}
    assert basin.ensure_stream("s", {}, NOW)[1] is Provision.CREATED
    assert basin.ensure_stream("s", {}, NOW)[1] is Provision.NOOP
    stream, provision = basin.ensure_stream("s", infinite, NOW)
    assert (stream.config.retention_s, provision) == (None, Provision.UPDATED)
    assert basin.ensure_stream("s", stream.config.to_json(), NOW)[1] is Provision.NOOP

    assert account.ensure_basin("basin-00", {"create_stream_on_read": True}, NOW)[1] is Provision.UPDATED
    assert account.ensure_basin("basin-00", basin.config.to_json(), NOW)[1] is Provision.NOOP
    assert account.ensure_basin("basin-01", {}, NOW)[1] is Provision.CREATED


def test_reconfiguring_changes_the_given_fields_and_null_resets_them(basin: Basin) -> None:
    basin.create_stream("s", {"storage_class": "standard", "retention_policy": {"age": 9}}, NOW)

    changed = basin.reconfigure_stream("s", {"retention_policy": None, "delete_on_empty": {"min_age_secs": 5}}, NOW)

    assert changed.config == StreamConfig(storage_class="standard", delete_on_empty_s=5)


@pytest.mark.parametrize("change", [{"retention_policy": {"age": 0}}, {"storage_class": "fast"}])
def test_a_configuration_that_means_nothing_is_refused(basin: Basin, change: Json) -> None:
    assert refusal_of(lambda: basin.create_stream("s", change, NOW)) is S2ErrorCode.INVALID
    assert refusal_of(lambda: BasinConfig().changed({"default_stream_config": change})) is S2ErrorCode.INVALID


def test_streams_are_created_by_appends_or_reads_only_where_the_basin_says_so(account: Account, basin: Basin) -> None:
    assert refusal_of(lambda: basin.stream_to_append("s", {}, NOW)) is S2ErrorCode.STREAM_NOT_FOUND
    assert refusal_of(lambda: basin.stream_to_read("s", {}, NOW)) is S2ErrorCode.STREAM_NOT_FOUND

    account.reconfigure_basin("basin-00", {"create_stream_on_append": True})
    appended = basin.stream_to_append("s", {"retention_policy": {"age": 9}}, NOW)
    assert basin.stream_to_append("s", {"retention_policy": {"age": 8}}, NOW) is appended
    assert appended.config.retention_s == 9
    assert refusal_of(lambda: basin.stream_to_read("t", {}, NOW)) is S2ErrorCode.STREAM_NOT_FOUND

    account.reconfigure_basin("basin-00", {"create_stream_on_read": True})
    assert basin.stream_to_read("t", {}, NOW).name == "t"


def test_a_stream_that_is_created_again_starts_at_zero(basin: Basin) -> None:
    old = basin.create_stream("s", {}, NOW)
    old.append(bodies("a"), NOW)
    basin.delete_stream("s", NOW)
    new = basin.create_stream("s", {}, NOW)

    assert (old.is_deleted, new.is_deleted, new.tail.seq_num) == (True, False, 0)


def test_deleting_a_basin_deletes_its_streams(account: Account, basin: Basin) -> None:
    stream = basin.create_stream("s", {}, NOW)
    account.delete_basin("basin-00")
    assert stream.is_deleted
    assert account.page(PageQuery()).items == ()


def test_an_empty_stream_is_deleted_when_it_is_asked_for_too_late(basin: Basin) -> None:
    stream = basin.create_stream("s", {"delete_on_empty": {"min_age_secs": 10}}, NOW)
    assert basin.stream("s", NOW + 9) is stream
    assert refusal_of(lambda: basin.stream("s", NOW + 10)) is S2ErrorCode.STREAM_NOT_FOUND
    assert stream.is_deleted


def test_lists_come_in_pages(basin: Basin) -> None:
    for name in ("b2", "a1", "b1", "b3"):
        basin.create_stream(name, {}, NOW)

    def names(query: PageQuery) -> tuple[list[str], bool]:
        page = basin.page(query, NOW)
        return [stream.name for stream in page.items], page.has_more

    assert names(PageQuery()) == (["a1", "b1", "b2", "b3"], False)
    assert names(PageQuery(prefix="b", limit=2)) == (["b1", "b2"], True)
    assert names(PageQuery(prefix="b", start_after="b2", limit=2)) == (["b3"], False)
    assert names(PageQuery(limit=0)) == (["a1", "b1", "b2", "b3"], False)


def test_access_tokens_are_issued_listed_and_revoked(account: Account) -> None:
    assert account.issue_token({"id": "t", "scope": {"ops": ["read"]}})
    again = {"id": "t", "scope": {"ops": ["append"]}}
    assert refusal_of(lambda: account.issue_token(again)) is S2ErrorCode.RESOURCE_ALREADY_EXISTS
    assert [token["id"] for token in account.token_page(PageQuery()).items] == ["t"]
    account.revoke_token("t")
    assert account.token_page(PageQuery()).items == ()
