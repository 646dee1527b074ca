"""The steps that the tests of the contract are made of."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any
from unittest import SkipTest

from django.core.cache import caches
from django.db import connections

from .._values import clock
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from .._values.owner_record import owner_record
from .._values.tokens import new_token
from ..exceptions import ListingNotSupported
from ..stores.base import BaseStore, Grant, Refusal, Waiter

LONG_SECONDS = 30.0
"""a ttl that does not end within a test"""
TIMEOUT_SECONDS = 20.0
"""how long a test waits for what must happen, before it fails"""
ROUNDING_SECONDS = 2.5
"""how long a lock may outlive its lease, in a store that counts whole seconds"""


class Contract:
    """What a subclass must and may define."""

    excludes = True
    """False for a store that is known to grant one lock to two callers of the same moment: tests of
    such races are skipped then."""
    one_clock = True
    """False for a store whose parts have clocks of their own, and which does not always read the
    same ones: two reads may then show two times at which a lease was acquired."""

    def make_store(self) -> BaseStore:
        """Return the store under test. Called once in each test."""
        raise NotImplementedError("a StoreContract needs make_store()")

    def make_silent_store(self) -> BaseStore | None:
        """Return a store whose server does not answer, for example at a port where nobody listens.

        None: the test of outages is skipped.
        """
        return None


def needs(able: bool, what: str) -> None:
    """Skip the test unless the store is ``able``."""
    if not able:
        raise SkipTest(f"only for a store that {what}")


def new_name() -> str:
    return f"contract-{secrets.token_hex(8)}"


def granted(
    store: BaseStore, name: str, token: str | None = None, ttl: float = LONG_SECONDS
) -> Grant:
    answer = store.acquire(name, token or new_token(), ttl, owner_record())
    assert isinstance(answer, Grant), f"{name!r} was refused: {answer}"
    return answer


def eventually_granted(store: BaseStore, name: str, token: str, ttl: float = LONG_SECONDS) -> Grant:
    deadline = clock.now() + TIMEOUT_SECONDS
    while True:
        answer = store.acquire(name, token, ttl, owner_record())
        if isinstance(answer, Grant):
            return answer
        assert clock.now() < deadline, f"{name!r} is refused still: {answer}"
        time.sleep(random.uniform(0.0005, 0.005))


def waiting_in_queue(store: BaseStore, name: str) -> tuple[str, Waiter]:
    """A new waiter in the wait queue of a lock that is held, with its token."""
    token = new_token()
    waiter = store.waiter(name, token, LONG_SECONDS, owner_record())
    assert waiter is not None
    assert isinstance(waiter.ask(), Refusal)
    return token, waiter


def handed_over(waiter: Waiter) -> Grant:
    deadline = clock.now() + TIMEOUT_SECONDS
    while clock.now() < deadline:
        news = waiter.wait(deadline - clock.now())
        if isinstance(news, Grant):
            return news
    raise AssertionError("the lock was not handed over")


def until(condition: Callable[[], bool]) -> None:
    deadline = clock.now() + TIMEOUT_SECONDS
    while not condition():
        assert clock.now() < deadline, "it never happened"
        time.sleep(0.01)


def in_threads(count: int, work: Callable[[], Any]) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
        finally:
            # What a store has opened for this thread.
            caches.close_all()
            connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def assert_cannot_list(store: BaseStore) -> None:
    for question in (store.list, store.count):
        try:
            question()
        except ListingNotSupported:
            continue
        raise AssertionError(f"{question} answered, though supports_listing is False")


def assert_describes(
    info: LockInfo, store: BaseStore, name: str, token: str, owner: Owner, before: float
) -> None:
    """``info`` is of a lease of `LONG_SECONDS` that began after ``before``, on `clock.now`."""
    assert (info.name, info.token, info.store) == (name, token, store.alias)
    assert info.key
    assert info.owner == owner
    passed = clock.now() - before
    assert info.ttl is not None
    assert LONG_SECONDS - passed - 0.1 <= info.ttl <= LONG_SECONDS + ROUNDING_SECONDS
    assert info.acquired_at is not None
    # Two machines' clocks may differ; the same instant in two time zones is an hour apart.
    age = abs(datetime.now(timezone.utc) - info.acquired_at)
    assert age < timedelta(minutes=5)
