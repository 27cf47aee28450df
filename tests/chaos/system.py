"""The system under chaos: an origin, a gateway, and the two stretches of network between them and the clients.

Everything is real and in one event loop, but for a gateway with workers, which has processes of its own.  Some of the
gateways have so little room that they evict every second, others remember everything.  Their times are short, by a
clock that runs `SPEED` times as fast as the machine's.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Final

from gateway.config.authorisation import AuthRuleConfig
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from tests.chaos.gateways import Gateway, GatewayHere
from tests.chaos.ledger import Ledger
from tests.chaos.link import Link
from tests.chaos.manners import Manners
from tests.chaos.parties import SHARED, PartyOrigin
from tests.fast_clock import CommonClock, FastClock
from tests.ports import kept_port
from tests.scenarios.credentials import jwt_rule
from tests.scenarios.credentials import token as jwt
from tests.scenarios.wire import Wire
from tests.waiting import pause
from tests.workers.process import GatewayProcess

SPEED: Final = 20.0
_LOGGED: Final = 15
CACHES: Final = (48 << 10, 1 << 20, 8 << 20)
"""Budgets (bytes) of which each gateway has one: room for little but what is read now, for most, for all."""
_LEEWAY_S: Final = 300.0
_NO_TROUBLE_S: Final = 30.0
"""Real seconds within which all is well again when no fault is left.  A busy machine takes long to replace a killed
worker."""

VARIANTS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"trust_s": 2.0, "absent_s": 1.0},
    {"tail": "asked"},
    {"compression": ("gzip",), "tail_heard_s": 1.0},
    {"cors": {"allow_origins": ["*"]}, "follow_above_per_s": 0.0},
    {"tail_fresh_s": 2.0, "retry_attempts": 0},
)
"""What a reload may change."""


class System:
    """Origin, gateway and network.  `stop` is owed."""

    def __init__(
        self,
        rng: Random,
        manners: Manners,
        *,
        is_production: bool = False,
        has_auth: bool = False,
        workers: int = 0,
        mutant: str = "",
    ) -> None:
        """`is_production` is a gateway with an access log, behind a proxy, and with tokens on a route whose readers
        share; with `has_auth` it judges them.  With `workers` it is the program with so many, which may be a mutant of
        `tests.workers.mutants`."""
        self._keys = tempfile.TemporaryDirectory() if has_auth else None
        self._tokens: dict[str, tuple[str, float]] = {}
        self.workers = workers
        self._has_killed = False
        """Whether a worker of the present gateway was killed, with lines and counts of its own."""
        self._mutant = mutant
        self.clock = CommonClock(SPEED) if workers else FastClock(SPEED)
        self._rng = rng
        self._cache_bytes = CACHES[0]
        self._variant: dict[str, Any] = {}
        settings = OriginSettings(long_poll_timeout_s=30.0, sse_lifetime_s=200.0, max_chunk_bytes=256)
        self.origin = PartyOrigin(settings, clock=self.clock, random=Random(rng.random()))
        self.manners = self.origin.manners = manners
        self.ledger = Ledger() if is_production else None
        """The requests that the access log has to have; None without one."""
        self.on_wrong_line: Callable[[str, str, str], None] = lambda *_: None
        """Called with a request, its line and the fault."""
        self.origin_side = Link(lambda: ("127.0.0.1", self._origin_port), Random(rng.random()))
        self.client_side = Link(lambda: ("127.0.0.1", self._gateway_port), Random(rng.random()))
        self._kept = ExitStack()
        # Either restarts at its port.
        self._origin_port, self._gateway_port = (self._kept.enter_context(kept_port()) for _ in range(2))
        self.served: RunningOrigin | None = None
        self.gateway: Gateway | None = None
        self._restarts: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self.served = await self._serve_origin()
        await self.origin_side.start()
        await self.client_side.start()
        await self._start_gateway()

    def _config(self) -> GatewayConfig:
        settings: dict[str, Any] = {
            "listen": f"127.0.0.1:{self._gateway_port}",
            "admin": "127.0.0.1:0",
            "cache_bytes": self._cache_bytes,
            "max_reply_bytes": 1024,
            "max_flight_bytes": 65_536,
            "compress_min_bytes": 64,
            "long_poll_timeout_s": 40.0,
            "sse_lifetime_s": 120.0,
            "live_linger_s": 2.0,
            "collapse_wait_s": 2.0,
            "keepalive_timeout_s": 3_600.0,
            "absent_s": 10.0,
            "trust_s": 20.0,
            "absent_per_s": 0,
            "hit_for_miss_s": 10.0,
            # All clients share one address.
            "client_new_streams_per_s": 0,
            # A breaker that is open for half of the time would answer for the gateway.
            "breaker_failures": 20,
            "breaker_ratio": 0.8,
            "breaker_longest_open_s": 2.0,
            # The waits for an origin are the loop's, in real seconds.
            "connect_timeout_s": 1.0,
            "first_byte_timeout_s": 2.0,
            "live_first_byte_timeout_s": 4.0,
            "idle_timeout_s": 2.0,
            "total_timeout_s": 8.0,
            "shutdown_timeout_s": 0.3,
        }
        if self.ledger is None:
            return GatewayConfig.for_origin(self.origin_side.url, **(settings | self._variant))
        settings |= {
            "sink": "file",
            "path": str(self.ledger.log),
            "client_address": "full",
            "live_interval_s": 10.0,
            # Some of it is for the lines that are not written yet.
            "shutdown_timeout_s": 0.6,
            # The file has the times of the machine, not those of the run.
            "rotate_s": 0,
            "trusted_proxies": ["127.0.0.1/32"],
        }
        config = GatewayConfig.for_origin(self.origin_side.url, **(settings | self._variant))
        (route,) = config.routes
        shared = route.model_copy(update={"name": "shared", "prefix": SHARED, "credentials": "shared"})
        if self._keys is not None:
            rule = jwt_rule(Path(self._keys.name), leeway_s=_LEEWAY_S, permissions=["* /**"])
            shared = shared.model_copy(update={"auth": (AuthRuleConfig.model_validate(rule),)})
        return config.model_copy(update={"routes": (route, shared)})

    def token(self, name: str) -> str | None:
        """The token of a client, renewed every now and then; it is valid for `_LEEWAY_S` more or less.  None if the
        gateway judges none."""
        if self._keys is None:
            return None
        now = self.clock.wall()
        known = self._tokens.get(name)
        if known is None or now >= known[1]:
            expires_at = now + self._rng.uniform(-_LEEWAY_S / 2, _LEEWAY_S / 4)
            known = self._tokens[name] = (jwt(name, exp=expires_at, iat=int(now) - 1), now + _LEEWAY_S / 8)
        return known[0]

    async def _start_gateway(self) -> None:
        rng = Random(self._rng.random())
        self._cache_bytes = self._rng.choice(CACHES)
        if isinstance(self.clock, CommonClock):
            self.gateway = await GatewayProcess.start(
                self._config(), self.workers, clock=self.clock, mutant=self._mutant
            )
        else:
            self.gateway = await GatewayHere.start(self._config(), self.clock, rng)

    def logged(self) -> list[str]:
        """The latest lines that a gateway with processes of its own has logged."""
        return self.gateway.said().splitlines()[-_LOGGED:] if isinstance(self.gateway, GatewayProcess) else []

    @property
    def running(self) -> Gateway:
        assert self.gateway is not None, "the gateway is being restarted"
        return self.gateway

    @property
    def keeps_facts(self) -> bool:
        """Whether there is room for what is known of every stream."""
        return self._cache_bytes > CACHES[0]

    # -- what may happen to it

    async def drain(self, within_s: float) -> None:
        """Have the gateway drain; `undo_drain` is owed, or the gateway's end."""
        if (gateway := self.gateway) is not None:
            await self._unless_stopped(gateway, gateway.drain(within_s))

    async def undo_drain(self) -> None:
        if (gateway := self.gateway) is not None:
            await self._unless_stopped(gateway, gateway.undo_drain())

    async def _unless_stopped(self, gateway: Gateway, work: Coroutine[Any, Any, None]) -> None:
        """Do it; a failure counts only if the gateway is not being stopped meanwhile."""
        try:
            await work
        except AssertionError:
            if self.gateway is gateway:
                raise

    def kill_worker(self) -> int | None:
        """End a worker by SIGKILL; returns its pid, or None if there is none."""
        gateway = self.gateway
        pid = gateway.kill_worker(self._rng) if isinstance(gateway, GatewayProcess) else None
        self._has_killed |= pid is not None
        return pid

    async def restart_gateway(self) -> None:
        """Stop the gateway, in order as far as it goes, and begin another that knows nothing."""
        await self._whole(self._restart_gateway())

    async def restart_origin(self, down_s: float) -> None:
        """Cut the origin's connections; it comes back at the same port with the same streams."""
        await self._whole(self._restart_origin(down_s))

    async def _whole(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it to its end, whether or not somebody waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)
        await asyncio.shield(task)

    async def restarted(self) -> None:
        """Wait until what is being restarted is there again."""
        await asyncio.gather(*self._restarts)

    async def _restart_gateway(self) -> None:
        if self.gateway is not None:
            gateway, self.gateway = self.gateway, None
            await self._stop_gateway(gateway)
            await self._start_gateway()

    async def _stop_gateway(self, gateway: Gateway) -> None:
        exposition = await gateway.stop()
        if self.ledger is not None:
            # The metrics of a program are those from before its drain.
            counts = None if self.workers else exposition
            for wrong in self.ledger.audit(counts, is_lossy=self._has_killed):
                self.on_wrong_line(*wrong)
        self._has_killed = False

    async def _restart_origin(self, down_s: float) -> None:
        if self.served is not None:
            served, self.served = self.served, None
            await served.stop(grace_s=0)
            await pause(down_s)
            self.served = await self._serve_origin()

    async def _serve_origin(self) -> RunningOrigin:
        return await start_origin(OriginSettings(port=self._origin_port), origin=self.origin)

    async def reload(self, variant: dict[str, Any]) -> None:
        """Have another configuration, as SIGHUP does."""
        if (gateway := self.gateway) is not None:
            self._variant = variant
            await self._unless_stopped(gateway, gateway.reload(self._config()))

    async def purge(self, stream: str, *, is_soft: bool) -> None:
        """Purge a path by the admin port."""
        if (gateway := self.gateway) is not None:
            await self._unless_stopped(gateway, gateway.purge(stream, is_soft=is_soft))

    async def end_trouble(self) -> None:
        """No fault is left, nothing is held, and the gateway does not drain."""
        await self.undo_drain()
        self.origin.faults.clear()
        self.origin_side.calm()
        self.client_side.calm()

    async def until_well(self) -> None:
        """Wait until the gateway takes its origin for well: requests alone make it look again.  Raises TimeoutError."""
        async with asyncio.timeout(_NO_TROUBLE_S):
            await self.restarted()
            while not await self.running.is_well():
                wire = await Wire.open(self.running.url)
                await wire.ask(f"/probe-{secrets.token_hex(4)}", {}, "HEAD")
                await wire.answer("HEAD")
                await wire.closed()
                await pause(0.01)

    # -- the end

    async def left_over(self) -> list[str]:
        """What the gateway still holds although no client wants anything of it."""
        return await self.running.left_over()

    async def stop(self) -> None:
        await self.end_trouble()
        if self.gateway is not None:
            await self._stop_gateway(self.gateway)
        await self.origin_side.stop()
        await self.client_side.stop()
        if self.served is not None:
            await self.served.stop(grace_s=0)
        self._kept.close()
        if self._keys is not None:
            self._keys.cleanup()
        if self.ledger is not None:
            self.ledger.close()
