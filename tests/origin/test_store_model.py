"""The store compared with the simplest model: a dict of byte strings."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.origin.positions import parse_token
from gateway.origin.producers import Claim
from gateway.origin.refusals import RequestError
from gateway.origin.store import AppendParams, CreateParams, ForkParams, Store
from gateway.origin.streams import Lifetime
from tests.effort import examples

PATHS = st.sampled_from(["/a", "/b", "/c"])
BODIES = st.binary(max_size=12)
TYPE = "application/octet-stream"


Result = TypeVar("Result")


def attempt(call: Callable[[], Result]) -> Result | RequestError:
    try:
        return call()
    except RequestError as refused:
        return refused


@dataclass
class Model:
    data: bytes
    is_closed: bool = False
    ttl_s: int | None = None
    used_at: float = 0.0
    source: str | None = None
    is_hidden: bool = False
    producer: tuple[int, int] = (-1, -1)
    offsets: dict[str, int] = field(default_factory=dict)


class StoreAgainstModel(RuleBasedStateMachine):
    offsets: Bundle[tuple[str, str]] = Bundle("offsets")

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.model: dict[str, Model] = {}
        self.now = 0.0

    # -- the model

    def has_forks(self, path: str) -> bool:
        return any(model.source == path for model in self.model.values())

    def remove(self, path: str) -> None:
        if self.has_forks(path):
            self.model[path].is_hidden = True
            return
        source = self.model.pop(path).source
        if source is not None and self.model[source].is_hidden:
            self.remove(source)

    def look(self, path: str) -> Model | None:
        model = self.model.get(path)
        if model and not model.is_hidden and model.ttl_s is not None and self.now >= model.used_at + model.ttl_s:
            self.remove(path)
            model = self.model.get(path)
        return model

    def readable(self, path: str) -> Model | None:
        model = self.look(path)
        return None if model is None or model.is_hidden else model

    # -- rules

    @rule(seconds=st.integers(1, 8))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule(path=PATHS, body=BODIES, closed=st.booleans(), ttl_s=st.none() | st.integers(1, 20))
    def create(self, path: str, body: bytes, closed: bool, ttl_s: int | None) -> None:
        known = self.look(path)
        order = CreateParams(TYPE, Lifetime(ttl_s=ttl_s), closed, body=body)
        created = attempt(lambda: self.store.create(path, order, self.now))
        if isinstance(created, RequestError):
            assert known is not None
            assert known.is_hidden or known.source or (known.ttl_s, known.is_closed) != (ttl_s, closed)
            assert created.status == 409
            return
        stream, is_new = created
        assert is_new == (known is None)
        if is_new:
            self.model[path] = Model(body, closed, ttl_s, self.now, offsets={stream.tail.token: len(body)})

    @rule(path=PATHS, source=PATHS, point=st.integers(0, 5))
    def fork(self, path: str, source: str, point: int) -> None:
        known, of = self.look(path), self.readable(source)
        offset = sorted(of.offsets)[point % len(of.offsets)] if of else None
        created = attempt(lambda: self.store.create(path, CreateParams(fork=ForkParams(source, offset)), self.now))
        if isinstance(created, RequestError):
            assert known is not None or of is None
            assert created.status == (409 if known or source in self.model else 404)
            return
        if not created[1]:
            assert known is not None
            return
        assert known is None
        assert of is not None
        assert offset is not None
        inherited = {token: place for token, place in of.offsets.items() if token <= offset}
        self.model[path] = Model(
            of.data[: of.offsets[offset]], ttl_s=of.ttl_s, used_at=self.now, source=source, offsets=inherited
        )

    @rule(path=PATHS, body=BODIES, close=st.booleans())
    def append(self, path: str, body: bytes, close: bool) -> None:
        model = self.readable(path)
        accepted = attempt(lambda: self.store.append(path, AppendParams(body, TYPE, close), self.now))
        if isinstance(accepted, RequestError):
            if model is None:
                assert accepted.status == (410 if path in self.model else 404)
            elif not body and not close:
                assert accepted.status == 400
            else:
                assert model.is_closed
                assert accepted.status == 409
            return
        assert model is not None
        assert not (model.is_closed and body)
        model.data += body
        model.is_closed |= close
        model.used_at = self.now
        model.offsets[accepted.tail.token] = len(model.data)

    @rule(path=PATHS, epoch=st.integers(0, 2), seq=st.integers(0, 3), body=BODIES.filter(bool))
    def produce(self, path: str, epoch: int, seq: int, body: bytes) -> None:
        model = self.readable(path)
        order = AppendParams(body, TYPE, claim=Claim("p", epoch, seq))
        accepted = attempt(lambda: self.store.append(path, order, self.now))
        if model is None:
            assert isinstance(accepted, RequestError)
            assert accepted.status == (410 if path in self.model else 404)
            return
        last_epoch, last_seq = model.producer
        if model.is_closed:
            expected = 409
        elif epoch < last_epoch:
            expected = 403
        elif epoch > last_epoch >= 0 and seq:
            expected = 400
        elif seq > (last_seq + 1 if epoch == last_epoch else 0):
            expected = 409
        else:
            assert not isinstance(accepted, RequestError)
            assert accepted.is_duplicate == (epoch == last_epoch and seq <= last_seq)
            model.used_at = self.now
            if not accepted.is_duplicate:
                model.producer = (epoch, seq)
                model.data += body
                model.offsets[accepted.tail.token] = len(model.data)
            return
        assert isinstance(accepted, RequestError)
        assert accepted.status == expected

    @rule(path=PATHS)
    def delete(self, path: str) -> None:
        model = self.readable(path)
        deleted = attempt(lambda: self.store.delete(path, self.now))
        if isinstance(deleted, RequestError):
            assert model is None
            assert deleted.status == (410 if path in self.model else 404)
            return
        assert model is not None
        self.remove(path)

    @rule(target=offsets, path=PATHS, limit=st.integers(1, 20))
    def read_on(self, path: str, limit: int) -> tuple[str, str]:
        model = self.readable(path)
        if model is None:
            return path, ""
        found = self.store.get(path, self.now).read(None, limit)
        assert found.body() == model.data[: len(found.body())]
        assert found.up_to_date == (len(found.body()) == len(model.data))
        model.offsets[found.end.token] = len(found.body())
        return path, found.end.token

    @rule(kept=consumes(offsets))
    def an_offset_always_leads_to_the_same_position(self, kept: tuple[str, str]) -> None:
        path, token = kept
        model = self.readable(path)
        if model is None or token not in model.offsets:
            return
        found = self.store.get(path, self.now).read(parse_token(token), 1_000)
        assert found.body() == model.data[model.offsets[token] :]

    # -- invariants

    @invariant()
    def every_stream_holds_what_was_written(self) -> None:
        for path in ("/a", "/b", "/c"):
            model = self.look(path)
            stream = attempt(partial(self.store.get, path, self.now))
            if model is None or model.is_hidden:
                assert isinstance(stream, RequestError)
                assert stream.status == (404 if model is None else 410)
                continue
            assert not isinstance(stream, RequestError)
            assert stream.read(None, 10_000).body() == model.data
            assert stream.is_closed == model.is_closed
            ordered = sorted(model.offsets)
            assert [model.offsets[token] for token in ordered] == sorted(model.offsets.values())

    @invariant()
    def nothing_unreachable_is_held(self) -> None:
        assert set(self.store.paths()) == set(self.model)


TestStoreAgainstModel = StoreAgainstModel.TestCase
TestStoreAgainstModel.settings = settings(max_examples=examples(30, 120), stateful_step_count=40, deadline=None)
