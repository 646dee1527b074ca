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

from .. import clock
from ..exceptions import ListingNotSupported
from ..lease import LockInfo, new_token
from ..owner import Owner, owner_record
from ..stores.base import BaseStore, Grant, Line, Refusal

LONG = 30.0
"""seconds; a ttl that does not run out within a test"""
PATIENCE = 20.0
"""seconds to wait for what must happen, before a test fails"""
ROUNDING = 2.5
"""seconds that a lock may outlive its lease, in a store that counts whole seconds"""


class Contract:
    """What every part of the contract asks of a subclass."""

    excludes = True
    """False for a store that is known not to exclude callers who ask in the same moment: the
    race is then not run."""

    def make_store(self) -> BaseStore:
        """The store under test, called once a test."""
        raise NotImplementedError


def needs(able: bool, what: str) -> None:
    """Skip the test unless the store is ``able``."""
    if not able:
        raise SkipTest(f"only for a store that {what}")


def new_name() -> str:
    return f"contract-{secrets.token_hex(8)}"


def granted(store: BaseStore, name: str, token: str | None = None, ttl: float = LONG) -> Grant:
    answer = store.acquire(name, token or new_token(), ttl, owner_record())
    assert isinstance(answer, Grant), f"{name!r} was refused: {answer}"
    return answer


def eventually_granted(store: BaseStore, name: str, token: str, ttl: float = LONG) -> Grant:
    deadline = clock.now() + PATIENCE
    while True:
        answer = store.acquire(name, token, ttl, owner_record())
        if isinstance(answer, Grant):
            return answer
        assert clock.now() < deadline, f"{name!r} is refused still: {answer}"
        time.sleep(random.uniform(0.0005, 0.005))


def standing_in_line(store: BaseStore, name: str) -> tuple[str, Line]:
    """Somebody new in the line of a lock that is held."""
    token = new_token()
    line = store.line(name, token, LONG, owner_record())
    assert line is not None
    assert isinstance(line.ask(), Refusal)
    return token, line


def handed_over(line: Line) -> Grant:
    deadline = clock.now() + PATIENCE
    while clock.now() < deadline:
        news = line.wait(deadline - clock.now())
        if isinstance(news, Grant):
            return news
    raise AssertionError("the lock was not handed over")


def until(condition: Callable[[], bool]) -> None:
    deadline = clock.now() + PATIENCE
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
    """It is the lease of ``LONG`` seconds that began after ``before``, seconds on our clock."""
    assert (info.name, info.token, info.store) == (name, token, store.alias)
    assert info.key
    assert info.owner == owner
    passed = clock.now() - before
    assert info.ttl is not None
    assert LONG - passed - 0.1 <= info.ttl <= LONG + ROUNDING
    assert info.acquired_at is not None
    # Two machines' clocks may differ; the same instant in two time zones is an hour apart.
    age = abs(datetime.now(timezone.utc) - info.acquired_at)
    assert age < timedelta(minutes=5)
