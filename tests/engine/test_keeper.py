"""The thread that looks after the tokens of a store: what must not stop or mislead it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from django.db import connections

from django_tasklock import (
    Lease,
    LeaseLost,
    LockNotAcquired,
    StoreUnavailable,
    lock,
    locks,
    signals,
)
from django_tasklock.stores import stores
from django_tasklock.stores.base import Note
from tests.inside import keep_few_notes, kept, looks_before, owe
from tests.steps import LONG, RENEWED, Meanwhile, holder, in_child, renewed, silent, taken, waiting
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("on_redis")


@pytest.mark.parametrize("verb", ["acquire", "acquire_all", "try_acquire", "adopt"])
def test_lease_is_nobodys_at_no_moment(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the thread looks just before the lease is handed to the caller."""
    handle = taken("video:1").detach() if verb == "adopt" else "video:1"
    looks_before(monkeypatch, "alone")
    got: Any = getattr(locks, verb)([handle] if verb == "acquire_all" else handle)
    lease = got[0] if verb == "acquire_all" else got
    assert lease.held
    assert lease.release()


def test_error_of_what_a_receiver_has_left_open_ends_no_renewal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[int] = []

    def close_all() -> None:
        closed.append(1)
        raise RuntimeError("it cannot be closed")

    monkeypatch.setattr(connections, "close_all", close_all)
    lease = taken("video:1", ttl=RENEWED, renew=True)
    renewed(lease, times=2)
    assert closed
    assert lease.release()


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_receiver_that_raises(error: type[BaseException]) -> None:
    """In a caller's thread it is the caller's error, in the other one nobody's."""

    def fail(lease: Lease, **rest: Any) -> None:
        if lease.name == "video:1":
            raise error

    signals.lock_lost.connect(fail)
    try:
        other = taken("video:2", ttl=RENEWED, renew=True)
        lease = taken("video:1", ttl=RENEWED, renew=True)
        locks.clear("video:1")
        until(lambda: "lost" in repr(lease), "its loss")
        renewed(other)
        assert other.release()
    finally:
        signals.lock_lost.disconnect(fail)


def test_too_many_notes_are_left_to_their_ttl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of calls that got no answer."""
    keep_few_notes(monkeypatch, 5)
    silent(monkeypatch, "set_note")
    for number in range(100):
        owe("video:1", Note(f"key {number}", "text", LONG), LONG, stores["default"])
    assert kept() <= 6


class TestFork:
    def test_child_of_a_process_that_holds_and_waits(self) -> None:
        """It holds nothing, renews nothing and releases nothing; its own locks work."""

        def child() -> list[bool]:
            said = [lease.held, lease.release(), lease.extend(), locks.is_locked("video:1")]
            with lock("video:3", ttl=RENEWED) as own:
                renewed(own)
            return [*said, locks.is_locked("video:3"), kept() == 0]

        lease, other = taken("video:1", renew=True), taken("video:2")
        thread = Meanwhile(lambda: taken("video:2", ttl=LONG, wait=LONG))
        until(lambda: waiting("video:2") == 1)
        assert in_child(child) == [False, False, False, True, False, True]
        assert other.release()
        assert thread.result().release()
        assert (lease.held, lease.release()) == (True, True)

    def test_block_that_a_child_leaves(self) -> None:
        def child() -> str:
            try:
                block.__exit__(None, None, None)
            except LeaseLost as error:
                return error.reason
            return ""

        block = lock("video:1", ttl=LONG)
        with block as lease:
            assert in_child(child) == "it belongs to the parent of this forked process"
            assert holder("video:1").token == lease.token


VERBS = (
    "acquire", "acquire_all", "release", "extend", "extend_many", "rewrite", "get", "abandon",
    "abandon_to", "clear",
)  # fmt: skip


class Outages:
    """One call to the store, with that number, gets no answer; ``done``: though it is carried
    out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number, self.done = 0, False
        self.lost: list[str] = []
        for verb in VERBS:
            method = getattr(stores["default"], verb)
            monkeypatch.setattr(stores["default"], verb, partial(self.call, verb, method))

    def call(self, verb: str, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.number -= 1
        if self.number != 0:
            return method(*args, **options)
        self.lost.append(verb)
        if self.done:
            method(*args, **options)
        raise StoreUnavailable("default", f"no answer to {verb}")


def a_block() -> None:
    with lock("video:1", ttl=LONG) as lease:
        lease.extend()


def a_cooling_block() -> None:
    with lock("video:1", ttl=LONG, cooldown=0.01, cooldown_after_error=0.01):
        pass


def nested_blocks() -> None:
    with lock("video:1", ttl=LONG, reentrant=True):
        with lock(["video:1", "video:2", "video:3"], ttl=LONG, reentrant=True):
            pass
        with pytest.raises(LockNotAcquired):
            lock(["video:1", "video:4"]).__enter__()


def a_lease_that_is_handed_on() -> None:
    with lock("video:1", ttl=1.0) as lease:
        adopted = locks.adopt(lease.detach(ttl=1.0), renew=True)
        assert adopted is None or adopted.release()


@pytest.mark.parametrize("done", [False, True], ids=["unasked", "unanswered"])
@pytest.mark.parametrize(
    "work", [a_block, a_cooling_block, nested_blocks, a_lease_that_is_handed_on]
)
def test_each_call_that_gets_no_answer(
    work: Callable[[], None], done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is nothing worse than `StoreUnavailable`, and nothing stays held."""
    outages, number = Outages(monkeypatch), 0
    outages.done = done
    while len(outages.lost) == number:
        number += 1
        outages.number = number
        with suppress(StoreUnavailable):
            work()
        outages.number = 0
        until(lambda: locks.count() == 0, f"the end of all after {outages.lost[-1:]}", 20)
        until(lambda: kept() == 0, "the end of all tokens", 20)
    print(outages.lost)
    assert number > 2
