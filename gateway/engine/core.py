"""The engine: the entry points for each kind of request.  One engine has one process's streams, fetches and live
readers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from gateway.aio.timers import Wheel
from gateway.bridge.bridge import Bridge
from gateway.config.fleet import FleetConfig
from gateway.config.gateway import GatewayConfig
from gateway.config.limits import LimitsConfig
from gateway.config.origin_tls import OriginTls
from gateway.disk.store import SETTLE_S, DiskStore
from gateway.engine.answer import Answer
from gateway.engine.catchup import CatchUp
from gateway.engine.cold_reads import ColdReadLimit, FirstRead
from gateway.engine.compression import Coder
from gateway.engine.confirming import Confirming
from gateway.engine.fetch_table import FetchTable
from gateway.engine.fleet import Fleet
from gateway.engine.from_disk import FromDisk
from gateway.engine.hit_for_miss import HEAD
from gateway.engine.live_start import LiveReads
from gateway.engine.long_poll import LongPoll
from gateway.engine.long_poll_waiter import WaitingPoll
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.owner_upstream import HopUpstream
from gateway.engine.passed_read import PassedRead, PassedReads
from gateway.engine.path_events import Purge
from gateway.engine.pending_writes import PendingWrites
from gateway.engine.process_store import ProcessStore
from gateway.engine.read import MOST_CHANGES, Read, Uncacheable
from gateway.engine.read_runner import ReadRunner, is_kept, is_known_kept
from gateway.engine.relay import Relay
from gateway.engine.response_heads import head_answer, origin_error_answer
from gateway.engine.route_table import RouteTable
from gateway.engine.s2.reads import S2Reads
from gateway.engine.s2.writes import S2Writes
from gateway.engine.sse import Sse, Subscription
from gateway.engine.upstream_factory import make_upstreams, recorded_writes
from gateway.engine.worker_store import WorkerStore
from gateway.engine.writes import Writes
from gateway.errors import GatewayError, TailMovedBack
from gateway.limits.accounts import Account
from gateway.limits.shared_accounts import open_accounts
from gateway.live.followed_streams import LiveTable
from gateway.live.subscriber import Drain
from gateway.live.topics import LiveTopics
from gateway.protocol.cache_status import Outcome
from gateway.protocol.etag import without_codings
from gateway.protocol.sharing import Group, allows
from gateway.protocol.stream_version import Version
from gateway.tape.eviction import POLICIES
from gateway.tape.record_stream import RecordStream
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.telemetry.surroundings import Surroundings
from gateway.upstream.client import OriginClient
from gateway.upstream.dialer import TlsReloader
from gateway.upstream.flight import CHANGES_TOO_FAST, METADATA, NotShareable, OriginError, StreamHead
from gateway.upstream.health import Health
from gateway.upstream.kept_connections import KeepAlive
from gateway.upstream.origin_pool import Credentials, Origins, origin_names
from gateway.upstream.reply import Upstream
from gateway.upstream.slots import SlotLimits
from gateway.workers.place import WorkerPlace
from gateway.workers.shared_origins import SharedOrigins
from gateway.workers.worker_owners import Owners

_log = logging.getLogger("gateway.origins")


class Engine:
    """Answers reads, and relays all other requests.

    The engine owns all engine state and the tasks in `surroundings`.  `close` ends these tasks.  If `upstream` is not
    None, it replaces the client for real origins, for example by an origin in memory.
    """

    def __init__(
        self,
        config: GatewayConfig,
        surroundings: Surroundings,
        credentials: Credentials | None = None,
        upstream: Upstream | None = None,
        tls: Mapping[str, OriginTls] | None = None,
        crew: WorkerPlace | None = None,
    ) -> None:
        """`crew` has the other workers of the gateway; None if this process is the only worker."""
        limits = config.limits
        self.surroundings = surroundings
        clock, rng, tasks, metrics, _, tracer = surroundings
        self.clock = clock
        self.tasks = tasks
        self.drain = Drain()
        self.tracer = tracer
        shared_origins = None if crew is None else SharedOrigins(crew.shared, crew.slot)
        self.origins = Origins(clock, rng, _log.warning, shared_origins)
        self.client = OriginClient(
            SlotLimits(
                limits.upstream_connections,
                limits.client_upstream_requests,
                limits.upstream_queue,
                limits.upstream_wait_s,
            ),
            tracer,
            self.origins,
        )
        origin_side = self.bridge = Bridge(self.client if upstream is None else upstream, clock, rng, self.tasks)
        self.health = Health(self.client.exchanges, self.origins, clock, rng)
        self.fleet: Fleet | None = None
        self.take_origins(config, credentials or {}, tls)
        self.tls_reloader = TlsReloader(lambda: self._config, self.client.exchanges.configure_tls, clock, _log.warning)
        """Watches the TLS files.  The application starts the watch if the configuration requires it."""
        eviction = POLICIES[limits.eviction]()
        self.store = TapeStore(limits.cache_bytes, eviction, lambda: f"{rng.getrandbits(48):012x}", metrics)
        self.disk: DiskStore | None = None
        """The store on disk; None if there is no store, or if the store is not open yet."""
        self.worker_store: WorkerStore | None = None
        """Opens the store of a worker; None if this process is the only one, or if there is no store."""
        self.process_store: ProcessStore | None = None
        """Opens the store of a gateway of one process; None if there are several, or if there is no store."""
        self.coder = Coder(
            self.store, clock, metrics, min_bytes=limits.compress_min_bytes, keep_bytes=limits.compress_cache_bytes
        )
        self.store.on_forget = self._forget
        self.bridge.on_trim = self._trimmed
        self.coder.on_evict = lambda stream: self.on_forget(stream)
        self.on_forget: Callable[[Stream], None] = lambda stream: None
        """Called when bytes of a stream were dropped, so that the server drops the remembered answers with these
        bytes."""
        self.pending_writes = PendingWrites()
        self.accounts = open_accounts(limits, clock.now, crew)
        self.negative_cache = NegativeCache(clock.now, self.pending_writes, self.accounts)
        upstreams = make_upstreams(origin_side, config, crew, (self.store, self.negative_cache), clock, rng)
        shared, self.by_fleet = upstreams.shared, upstreams.by_fleet
        self.hop, self.others, self.fleet = upstreams.hop, upstreams.others, upstreams.fleet
        self.live_table = LiveTable(self.store, surroundings, limits.followed_streams, self.accounts)
        self.live = LiveTopics(shared, self.store, surroundings, self.live_table, limits.max_flight_bytes)
        self._cold_read_limit = ColdReadLimit(self.negative_cache, self.accounts, metrics, rng, clock.now)
        self.s2_writes = S2Writes(self.store)
        self.writes = Writes(
            self.store, self.live, self.pending_writes, self.negative_cache, clock, self.s2_writes.written
        )
        self.writes.others = recorded_writes(self.others, self.fleet)
        if self.others is not None:
            self.others.applying = self.writes
            self.s2_writes.tell = self.others.appended
            self.store.others = self.others
        self.fetches = FetchTable(
            shared, self.store, surroundings, limits.max_flight_bytes, self.live, self.writes, self.negative_cache
        )
        self.relay = Relay(origin_side, self.store, self.writes, clock, metrics)
        self.purge = Purge(self.store, self.live)
        confirming = Confirming(self.fetches, clock)
        wheel = Wheel(clock)
        self._runner = ReadRunner(self.store, self.negative_cache, self._cold_read_limit, self.live, clock)
        hop, backlog = self.hop, self.fetches.backlog
        self._passed = PassedReads(hop, self._runner, backlog) if hop is not None else None
        self._reads = LiveReads(self.fetches, confirming, self.live, clock, rng, self.drain, limits.max_reply_bytes)
        if isinstance(shared, HopUpstream):
            self._reads.is_owner, self.live.placement = shared.is_owner, shared
        self._routes: RouteTable | None = None
        if config.store.path and crew is None:
            self.process_store = ProcessStore(config.store, clock, self._take_disk)
            self.process_store.open()
        elif config.store.path and crew is not None and self.others is not None and self.hop is not None:
            owners = Owners(crew.shared, crew.slot)
            self.worker_store = WorkerStore(config.store, crew, owners, self.others, clock, self._take_disk)
        self._catch_up = CatchUp(self._reads)
        # Live readers wait for new bytes, and new bytes are few.  Compress them only if the compression needs no wait.
        self._polls = LongPoll(self._reads, self._catch_up, self._runner, self.tasks, wheel, self.coder)
        self.sse = Sse(self._reads, self._runner, self.tasks, wheel)
        """Opens SSE reads.  The server calls it directly for SSE requests that it recognises."""
        self.s2 = S2Reads(
            upstreams.s2, self.store, surroundings, self.live_table, wheel, self.negative_cache, self._cold_read_limit
        )
        if self.others is not None:
            self.s2.streams.tell_ended = self.others.s2_ended
        self.limit_clients(limits)

    def __repr__(self) -> str:
        return f"<Engine {self.store!r} {self.fetches!r} {self.live!r}>"

    @property
    def look(self) -> Callable[[Stream], object] | None:
        """Applies the writes of other workers to a stream's path; None if this process is the only worker."""
        others = self.others
        if others is None:
            return None
        return lambda stream: (others.look_at_s2 if isinstance(stream, RecordStream) else others.look)(stream.key.group)

    async def catch_up(self, read: Read, first: FirstRead | None = None) -> Answer:
        """Answer a catch-up read.  `first` is the read's fetch if `begin_catch_up` has started one.

        The caller must call `Answer.close`.  Raises Uncacheable or a GatewayError.
        """
        asked = read if read.if_none_match is None else _without_codings(read)
        return await self._coded(read, await self._runner.run(asked, self._catch_up.answer, first))

    def caught_up(self, read: Read, first: FirstRead) -> Answer | Coroutine[Any, Any, Answer] | None:
        """Return the answer to a first read whose fetch has received the whole body.

        If the body has to be compressed, returns a coroutine for the answer.  Returns None if the caller must use
        `catch_up`.  The caller must call `Answer.close`.
        """
        answer = self._runner.landed(first)
        if answer is None:
            return None
        try:
            return answer if self.coder.wanted(read, answer) is None else self._coded(read, answer)
        except BaseException:
            answer.close()
            raise

    def begin_catch_up(self, read: Read) -> FirstRead | PassedRead | None:
        """Begin a catch-up read if nothing in memory affects its answer.  Start the fetch of the read, or pass the read
        to the worker that owns the stream.  Returns None for any other read.

        Raises a GatewayError.
        """
        if self._passed is not None and (passed := self._passed.begin(read)) is not None:
            return passed
        if (from_disk := self._reads.from_disk) is not None and from_disk.may_help(read.key, read.start):
            return None
        asked = read if read.if_none_match is None else _without_codings(read)
        return self._runner.start_first_read(asked, self._catch_up.start_fetch)

    def count_concealed(self, read: Read) -> None:
        """Count a refused read whose answer must not reveal whether the stream exists.

        The answer equals the answer for an absent stream.  Raises TooManyAbsent or TooManyRequests in the same cases as
        a read of an absent stream.
        """
        self._cold_read_limit.admit_read(read.route, read.source.client)
        self.negative_cache.count(read.route, read.source.client)

    def knows(self, read: Read) -> bool:
        """Return whether a HEAD can be answered or refused from memory.

        If the result is false, the HEAD must be relayed, and has been counted as a read of a new stream.
        """
        is_known = (
            self.store.find(read.key) is not None
            or self.negative_cache.find(read.key, METADATA, read.source.headers) is not None
        )
        return is_known or not self._cold_read_limit.admits(read.route, read.source.client)

    async def head(self, read: Read) -> Answer | None:
        """Answer a HEAD from memory; return None if the HEAD must be relayed.  Raises a GatewayError."""
        if (error := self.negative_cache.find(read.key, METADATA, read.source.headers)) is not None:
            if read.web_origin is not None and (error.varies_by_origin or not read.is_origin_met(error.headers)):
                return None
            return origin_error_answer(read.route, error, Outcome.HIT)
        stream = self.store.find(read.key)
        if stream is None:
            # The limit applies even if the HEAD is relayed, because a relayed HEAD is a request to the origin too.
            if not read.is_handed:
                self._cold_read_limit.admit_read(read.route, read.source.client)
            return None
        if read.route.unshared.reason(read.key, HEAD) is not None:
            return None
        now = self.clock.now()
        if stream.has_expired(now, self.clock.wall()):
            return None
        if is_known_kept(read, stream):
            return None
        stream.hold()
        try:
            answer = await self._catch_up.head(read, stream)
            if read.web_origin is not None and is_kept(read, stream, answer):
                return None
            stream.count_reads(1, answer is not None and answer.outcome is Outcome.HIT)
            return answer
        except TailMovedBack:
            # The stream was re-created or has ended.
            return None
        except Uncacheable as unshared:
            if unshared.why.is_lasting:
                read.route.unshared.remember(read.key, HEAD, unshared.why.reason)
            return None
        finally:
            self.store.release(stream)

    async def fetched_head(self, read: Read) -> Answer:
        """Answer a HEAD for another worker.  The origin is asked once for all workers, and its reply is recorded.

        Raises Uncacheable or a GatewayError.
        """
        for _ in range(MOST_CHANGES):
            stream = self._runner.open(read)
            stream.hold()
            try:
                head = await self.fetches.fresh_head(stream, METADATA, read.route, read.source)
                match head:
                    case StreamHead(tail):
                        return head_answer(read, stream, tail)
                    case NotShareable():
                        raise Uncacheable(head)
                    case OriginError():
                        return origin_error_answer(read.route, head, Outcome.MISS)
                    case TailMovedBack():
                        # The stream was re-created.  Ask again, on a new record.
                        continue
                assert isinstance(head, GatewayError), "the tail is not behind itself"
                raise head.anew()
            finally:
                self.store.release(stream)
        raise Uncacheable(CHANGES_TOO_FAST)

    def wait_at_once(self, read: Read) -> WaitingPoll | None:
        """Register a long-poll that can wait, or can be answered from memory, without a request to the origin.

        Returns None, without side effects, if the caller must use `long_poll`.  The caller must call `close` on the
        result.
        """
        stream = self._followed(read)
        waiting = self._polls.wait_at_once(_without_codings(read), stream) if stream is not None else None
        if waiting is not None:
            waiting.stream.count_reads(1, 0)
        return waiting

    def answer_late_poll(self, read: Read) -> Answer | None:
        """Answer a late long-poll if its answer may be repeated.  The bytes for a late long-poll are in memory when the
        poll arrives.

        Returns None for any other long-poll.  The caller must call `Answer.close`.
        """
        stream = self._followed(read)
        answer = self._polls.answer_late(_without_codings(read), stream) if stream is not None else None
        if stream is None or answer is None:
            return None
        answer = self.coder.code_now(read, answer)
        if answer.stream is None:
            # This answer is not compressed, but later answers may be compressed.
            answer.close()
            return None
        stream.count_reads(1, 1)
        return answer

    def version_if_late(self, read: Read) -> Version | None:
        """Return the stream's version if a long-poll is late; None if no bytes after the poll's offset are in
        memory."""
        stream = self.store.find(read.key)
        return stream.version if stream is not None and stream.tape.knows_after(read.start) else None

    def subscribe_at_once(self, read: Read) -> Subscription | None:
        """Subscribe an SSE read that can begin without a request to the origin.

        Returns None, without side effects, if the caller must use `open_sse`.  The caller must call `close` on the
        result.
        """
        stream = self._followed(read)
        subscription = self.sse.subscribe_now(read, stream) if stream is not None else None
        if subscription is not None:
            subscription.stream.count_reads(1, 0)
        return subscription

    def is_repeatable(self, read: Read) -> bool:
        """Return whether this read's shared answer may be repeated to equal requests without another check of their
        Origin header."""
        if read.web_origin is None:
            return True
        stream = self.store.find(read.key)
        return stream is not None and not stream.varies_by_origin and allows(stream.headers, read.web_origin)

    def _followed(self, read: Read) -> Stream | None:
        """Return the read's stream if it has live readers and this read may join them, else None."""
        stream = self.store.find(read.key)
        if (
            stream is None
            or not stream.has_topic
            or read.is_kept_from(stream)
            or stream.has_expired(self.clock.now(), self.clock.wall())
            or self._is_refused(read)
        ):
            return None
        return stream

    def _is_refused(self, read: Read) -> bool:
        """Return whether the gateway remembers that the origin refuses the read, or that the reply may not be
        shared."""
        unshared = read.route.unshared
        return (
            unshared.may_have_any and unshared.reason(read.key, read.shape) is not None
        ) or self.negative_cache.find(read.key, read.start, read.source.headers) is not None

    async def long_poll(self, read: Read) -> Answer | WaitingPoll:
        """Answer a long-poll, or register it as a waiting reader.

        The caller must call `close` on the result.  Raises Uncacheable or a GatewayError.
        """
        found = await self._polls.answer(_without_codings(read))
        return found if isinstance(found, WaitingPoll) else await self._coded(read, found)

    async def _coded(self, read: Read, answer: Answer) -> Answer:
        try:
            return await self.coder.code(read, answer)
        except BaseException:
            answer.close()
            raise

    async def open_sse(self, read: Read) -> Subscription | Answer:
        """Subscribe an SSE read, or return the answer that refuses the read.

        The caller must call `close` on a subscription.  Raises Uncacheable or a GatewayError.
        """
        return await self.sse.answer(read)

    def touch_stream(self, stream: Stream) -> None:
        """Record a use of the stream, because the server has sent a remembered answer."""
        stream.used_at = self.clock.now()
        self.store.touch(stream)
        self.coder.keep_coded(stream)

    def _forget(self, stream: Stream) -> None:
        if isinstance(stream, RecordStream):
            self.s2.forget_stream(stream)
        else:
            self.coder.forget_stream(stream)
        self.on_forget(stream)

    def take_origins(
        self, config: GatewayConfig, credentials: Credentials, tls: Mapping[str, OriginTls] | None = None
    ) -> tuple[str, ...]:
        """Use the origins of this configuration, and these secrets of its routes, from now on.

        Returns the names of the routes whose secret has changed.
        """
        self._config = config
        if self.fleet is not None:
            self.fleet.configure(config)
        changed = self.origins.configure(config.routes, config.origins, credentials)
        self.health.configure(config.routes)
        self.bridge.configure(config.routes)
        self._origin_names = origin_names(config.routes)
        origins = config.origins
        self.client.exchanges.keep(
            KeepAlive(origins.connection_idle_s, origins.connection_rest_s, origins.connection_age_s)
        )
        self.client.exchanges.configure_tls(tls or {})
        self.client.exchanges.configure_http2(config.http2_origins)
        self.client.exchanges.share_among(len(self.origins), len(config.routes))
        return changed

    def take_members(self, fleet: FleetConfig) -> None:
        """Use this list of the fleet's members from now on.  If the list comes from DNS or Redis, do nothing."""
        if self.fleet is not None and self.fleet.found is None:
            self.fleet.replace_members(fleet.members)

    def take_routes(self, routes: RouteTable) -> None:
        """Keep only the streams of these routes on disk."""
        self._routes = routes
        if self.disk is not None:
            self.disk.take_routes(routes.sharing(with_credentials=self.disk.with_credentials))

    def _take_disk(self, disk: DiskStore) -> None:
        """Use the store on disk from now on."""
        self.disk = self.store.keeper = disk
        disk.is_not_stored, disk.is_in_doubt = self.store.is_not_stored, self.store.is_in_doubt
        self._reads.from_disk = FromDisk(disk, self.store, self.fetches, self.clock)
        if self._routes is not None:
            self.take_routes(self._routes)

    @property
    def has_disk(self) -> bool:
        """Whether there is a store on disk, even if it is not open yet."""
        return self.process_store is not None or self.worker_store is not None

    def _trimmed(self, route: str, path: str, offset: str) -> None:
        """Drop the bytes before `offset` of a bridged S2 stream, because the origin has trimmed them."""
        for stream in self.store.group(Group(self._origin_names.get(route, ""), path)):
            self.store.forget_before(stream, offset)

    def limit_clients(self, limits: LimitsConfig) -> None:
        """Set two limits for each client network: the number of streams that are followed for it, and the number of new
        streams that it may read per second."""
        self.live_table.most_per_client = limits.most_client_followed_streams
        self._cold_read_limit.set_rate(limits.client_new_streams_per_s)

    async def join_fleet(self) -> None:
        """If there is a fleet, begin to send requests to its other members."""
        if self.fleet is not None and self.by_fleet is not None:
            await self.fleet.start()
            self.by_fleet.watch(self.live)

    def suspend_client(self, account: Account, until: float) -> None:
        """Refuse the client's reads of new streams until its ban ends at `until`."""
        self._cold_read_limit.suspend(account, until)

    def begin_drain(self, spread_s: float, within_s: float = math.inf, *, is_final: bool = False) -> None:
        """End all live readers at different times within `spread_s` seconds.  All must have ended after `within_s`
        seconds.

        `is_final` states that connections are cut soon after the drain.
        """
        self.drain.begin_drain(self.clock.now(), spread_s, within_s, is_final=is_final)
        self.live.drain_readers(spread_s, within_s, self.drain.ends)
        self.s2.drain_readers(spread_s, within_s)

    def undo_drain(self) -> None:
        """Stop the drain.  Live readers that have not ended yet continue."""
        self.drain.undo()
        self.live.stay()
        self.s2.stay()

    async def close(self, disk_s: float = SETTLE_S) -> None:
        """End everything.  The store on disk has `disk_s` for its last writes."""
        self.live_table.close()
        self.s2.shut_down()
        self.fetches.close()
        for hop in (self.hop, self.by_fleet):
            if hop is not None:
                await hop.close()
        await self.tls_reloader.close()
        await self.health.close()
        await self.tasks.close()
        await self.client.close()
        self.coder.close()
        until = self.clock.now() + disk_s
        if self.process_store is not None:
            await self.process_store.close()
        if self.worker_store is not None:
            await self.worker_store.close(disk_s / 2)
        if self.disk is not None:
            await self.disk.close(self.store, max(0.0, until - self.clock.now()))


def _without_codings(read: Read) -> Read:
    """Return the read after a change of its If-None-Match: the suffixes for compressed bodies are removed from the
    tags."""
    if read.if_none_match is None:
        return read
    return read._replace(if_none_match=without_codings(read.if_none_match, read.accepted))
