"""Five Redis servers behind proxies, and what may happen to them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import redis

from django_tasklock.stores import stores
from django_tasklock.stores.quorum import QuorumStore
from tests.proxy import CutProxy
from tests.servers import RedisServer

__all__ = ["ALIASES", "FAULTS", "SILENT", "Five", "five_behind_proxies", "quorum"]

ALIASES = "abcde"
SILENT = ("killed", "paused", "cut off")
"""faults after which a server does not answer"""
FAULTS = (*SILENT, "emptied")


class Five:
    """Five servers, each behind a proxy; a member is named by its number."""

    def __init__(self, servers: Sequence[RedisServer], proxies: Sequence[CutProxy]) -> None:
        self.servers, self.proxies = servers, proxies

    @property
    def urls(self) -> list[str]:
        return [proxy.url for proxy in self.proxies]

    def harm(self, fault: str, number: int) -> None:
        """Let one of `FAULTS` happen to a member."""
        server, proxy = self.servers[number], self.proxies[number]
        if fault == "killed":
            server.kill()
        elif fault == "paused":
            server.pause()
        elif fault == "cut off":
            proxy.refuse()
            proxy.cut()
        else:
            self.client(number).flushall()

    def mend(self, fault: str, number: int) -> None:
        """End what `harm` has begun. A killed server comes back empty."""
        if fault == "killed":
            self.servers[number].restart()
        elif fault == "paused":
            self.servers[number].resume()
        elif fault == "cut off":
            self.proxies[number].accept()

    def client(self, number: int) -> Any:
        """A client of the server itself."""
        return redis.Redis.from_url(self.servers[number].url)

    def plant_age(self, seconds: float, numbers: Iterable[int] = range(5)) -> None:
        """Let the data of members have begun so long ago."""
        since = int((time.time() - seconds) * 1_000_000)
        for number in numbers:
            for store in (quorum().members[number].store, quorum().members[number].notes):
                fences: Any = store.keyspace.fences  # type: ignore[attr-defined]
                self.client(number).hset(fences, " since", since)

    def plant_fence(self, fence: int, number: int) -> None:
        """Let the last fence of a member be this one, as if its clock were ahead."""
        store: Any = quorum().members[number].store
        self.client(number).hset(store.keyspace.fences, "", fence)

    def having(self, name: str) -> set[int]:
        """The members that have a lock's key. All servers must answer."""
        return {
            number
            for number in range(len(self.servers))
            if self.client(number).keys(f"*lock:{name}")
        }


@contextlib.contextmanager
def five_behind_proxies(servers: Sequence[RedisServer]) -> Iterator[Five]:
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(CutProxy(("127.0.0.1", server.port))) for server in servers]
        yield Five(servers, proxies)


def quorum() -> QuorumStore:
    """The store "default"."""
    store = stores["default"]
    assert isinstance(store, QuorumStore)
    return store
