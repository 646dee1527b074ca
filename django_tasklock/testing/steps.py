"""The steps that the tests of the contract are made of."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from unittest import SkipTest

from django.core.cache import caches
from django.db import connections

from .._values import clock
from .._values.lock_info import LockInfo
from .._values.owner import owner_record
from .._values.tokens import new_token
from ..stores.base import BaseStore, Grant, Refusal
from ..stores.records import Entry, Record, new_record

# A ttl that does not end within a test.
LONG_SECONDS = 30.0
# How long a test waits for what must happen, before it fails.
TIMEOUT_SECONDS = 20.0
# How long a lock may outlive its lease, in a store that counts whole seconds.
ROUNDING_SECONDS = 2.5


class ContractTests:
    """What a subclass must and may define."""

    def make_store(self) -> BaseStore:
        """Return the store under test. Called once in each test."""
        raise NotImplementedError("a StoreContract needs make_store()")

    def make_silent_store(self) -> BaseStore | None:
        """Return a store whose server does not answer, for example at a port where nobody listens.

        None: the test of outages is skipped.
        """
        return None


class Granted(NamedTuple):
    """Who was granted a lock."""

    store: BaseStore
    name: str
    token: str
    grant: Grant

    def extend(self, ttl: float) -> bool:
        return self.store.extend(self.name, self.token, ttl)

    def release(self) -> bool:
        return self.store.release(self.name, self.token)


def needs(able: bool, what: str) -> None:
    """Skip the test unless the store is ``able``."""
    if not able:
        raise SkipTest(f"only for a store that {what}")


def new_name() -> str:
    return f"contract-{secrets.token_hex(8)}"


def new_key() -> str:
    """A key as long as they get: a word, a task's name, and a lock's name of 200 characters."""
    return f"run videos.tasks.процесс {new_name()}:".ljust(240, "n")


def a_lease(token: str | None = None, version: str = "") -> dict[str, Any]:
    """The record of a lease."""
    return new_record(token or new_token(), owner_record(), version)


def asked(
    store: BaseStore,
    name: str,
    token: str | None = None,
    ttl: float = LONG_SECONDS,
    owner: Mapping[str, Any] | None = None,
) -> Granted | Refusal:
    """What a call gets that asks once for a lock, with a token of its own unless it has one."""
    token = token or new_token()
    answer = store.acquire([name], token, ttl, owner or owner_record())
    return answer if isinstance(answer, Refusal) else Granted(store, name, token, answer)


def granted(store: BaseStore, name: str | None = None, **lease: Any) -> Granted:
    """The holder of a lock that is free: of a new one, unless ``name`` is given. ``lease``: what
    `asked` takes."""
    name = name or new_name()
    holder = asked(store, name, **lease)
    assert isinstance(holder, Granted), f"{name!r} was refused: {holder}"
    return holder


def eventually_granted(store: BaseStore, name: str, ttl: float = LONG_SECONDS) -> Granted:
    """The holder of a lock that will be free."""
    token, deadline = new_token(), clock.now() + TIMEOUT_SECONDS
    while True:
        holder = asked(store, name, token, ttl)
        if isinstance(holder, Granted):
            return holder
        assert clock.now() < deadline, f"{name!r} is refused still: {holder}"
        time.sleep(random.uniform(0.0005, 0.005))


def refused(store: BaseStore, name: str) -> LockInfo:
    """The holder that a refusal shows to another caller."""
    refusal = asked(store, name)
    assert isinstance(refusal, Refusal), f"{name!r} was granted to a second holder"
    return refusal.holder


def assert_held_by(holder: Granted) -> LockInfo:
    """The lease of this very holder holds the lock; what shows it."""
    held = holder.store.find(holder.name)
    assert held is not None, f"nobody holds {holder.name!r}"
    assert (held.name, held.token) == (holder.name, holder.token)
    return held


def until(condition: Callable[[], bool]) -> None:
    deadline = clock.now() + TIMEOUT_SECONDS
    while not condition():
        assert clock.now() < deadline, "it never happened"
        time.sleep(0.01)


def in_threads(count: int, work: Callable[[], Any]) -> None:
    """Do ``work`` in so many threads, which begin together."""
    together = threading.Barrier(count)

    def run() -> None:
        together.wait(TIMEOUT_SECONDS)
        try:
            work()
        finally:
            # What a store has opened for this thread.
            caches.close_all()
            connections.close_all()

    with ThreadPoolExecutor(count) as threads:
        for done in [threads.submit(run) for _ in range(count)]:
            done.result()


def assert_has(entry: Entry | None, name: str, record: Record) -> Entry:
    """This record is under the name, and ends."""
    assert entry is not None, f"nothing is under {name!r}"
    assert entry.record is not None
    found = (entry.name, entry.record["token"], entry.record.get("version"))
    assert found == (name, record["token"], record.get("version"))
    assert entry.left is not None
    assert entry.left > 0
    return entry


def there(store: BaseStore, name: str) -> Entry:
    """What is under a name."""
    (entry,) = store.get([name])
    assert entry is not None, f"nothing is under {name!r}"
    return entry
