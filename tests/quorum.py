"""Quorums for tests: five Redis servers behind proxies, and what may happen to them; or memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import redis

from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant
from django_tasklock.stores.quorum import QuorumStore
from tests.inside import owner_record
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.store_cases import MEMORY_STORE, members, quorum_store

__all__ = [
    "FAULTS", "LOCMEM", "SILENT", "Five", "five_behind_proxies", "given_to", "having", "quorum",
    "use_memory", "use_quorum",
]  # fmt: skip

LOCMEM = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}

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

    @contextlib.contextmanager
    def without(self, *numbers: int) -> Iterator[None]:
        """These members are cut off, and have their data when they are back."""
        for number in numbers:
            self.harm("cut off", number)
        try:
            yield
        finally:
            for number in numbers:
                self.mend("cut off", number)

    def client(self, number: int) -> Any:
        """A client of the server itself."""
        return redis.Redis.from_url(self.servers[number].url)

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


def use_memory(use_caches: Callable[..., None], aliases: str = "abcde", **options: Any) -> None:
    """A quorum of stores in memory is the store "default"."""
    in_memory = {alias: {"BACKEND": MEMORY_STORE} for alias in aliases}
    use_caches({"default": LOCMEM}, {"default": quorum_store(aliases, **options)} | in_memory)


def use_quorum(
    five: Five, use_caches: Callable[..., None], *, ttl: float = 60.0, socket: float = 2.0,
    **options: Any,
) -> None:  # fmt: skip
    """Make them the members of the store "default", with this TTL, these OPTIONS, and so many
    seconds as SOCKET_TIMEOUT of each."""
    caches, tasklock = members(five.urls, SOCKET_TIMEOUT=socket)
    default = quorum_store(**options) | {"TTL": ttl}
    use_caches({"default": LOCMEM} | caches, {"default": default} | tasklock)


def given_to(aliases: str, name: str, token: str, ttl: float = 60.0) -> None:
    """A lease at these members alone."""
    for alias in aliases:
        assert isinstance(stores[alias].acquire([name], token, ttl, owner_record()), Grant)


def having(name: str, aliases: str = "abcde") -> str:
    """Those of the members that have a lock, as a word."""
    return "".join(alias for alias in aliases if stores[alias].find(name))


def quorum() -> QuorumStore:
    """The store "default"."""
    store = stores["default"]
    assert isinstance(store, QuorumStore)
    return store
