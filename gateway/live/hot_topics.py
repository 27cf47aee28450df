"""Hot topics: topics that are followed for catch-up reads, even if they have no live readers.

If catch-up reads often ask the origin for the tail of a stream (`Stream.count_tail_read`), one live request costs less.
The topic then becomes hot (`heat`).  A hot topic is checked every `_COOLING_S` seconds.  If its stream was read too
rarely, the topic cools: it is no longer hot.

Hot topics use at most half of the live requests.  If the bound on live requests is reached, a hot topic without live
readers is removed to make room for a live reader (`gateway.live.followed_streams`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.aio.clock import Clock
from gateway.live.followed_streams import LiveTable
from gateway.live.topic import Topic
from gateway.tape.store import TapeStore

_COOLING_S: Final = 10.0


class HotTopics:
    """Decides which topics of Durable Streams are hot.  `LiveTable.hot` has these topics."""

    def __init__(self, table: LiveTable, store: TapeStore, clock: Clock, is_misplaced: Callable[[Topic], bool]) -> None:
        """`is_misplaced` is true for a topic that was created for another process, if the live request would be sent
        elsewhere for clients of this process.  Such a topic cools.  If clients of this process then read the stream
        often, the topic becomes hot for them."""
        self._is_misplaced = is_misplaced
        self._table = table
        self._store = store
        self._clock = clock

    def __len__(self) -> int:
        return len(self._table.hot)

    def __repr__(self) -> str:
        return f"<HotTopics {len(self)}>"

    def __contains__(self, topic: Topic) -> bool:
        return topic in self._table.hot

    def heat(self, topic: Topic, per_s: float) -> bool:
        """Make the topic hot while its stream has at least `per_s` / 2 reads a second.

        Returns whether the topic has become hot.  The caller must then follow its stream.  If no live request is
        available for the topic, does nothing.
        """
        table, net = self._table, topic.access.source.client
        if topic in table.hot or topic.stream.tape.closed_at is not None or not table.has(topic):
            return False
        if not table.has_share(net, topic) or len(table.hot) >= table.most // 2:
            return False
        if not table.is_followed(topic) and (table.is_full or not self._store.may_grow):
            return False
        self._cool_later(topic, per_s * _COOLING_S / 2)
        table.charge(topic, net)
        return True

    def _cool_later(self, topic: Topic, least_reads: float) -> None:
        table, reads = self._table, topic.stream.reads

        def cool() -> None:
            is_of_use = table.is_followed(topic) and topic.stream.tape.closed_at is None
            is_of_use = is_of_use and not self._is_misplaced(topic)
            if is_of_use and topic.stream.reads - reads >= least_reads:
                self._cool_later(topic, least_reads)
            else:
                del table.hot[topic]
                table.remove_unused(topic)

        table.hot[topic] = self._clock.call_later(_COOLING_S, cool)

    def cool_all(self) -> None:
        """End all hot topics without live readers, because the gateway is draining."""
        for topic in list(self._table.hot):
            self._table.hot.pop(topic).cancel()
            self._table.remove_unused(topic)
