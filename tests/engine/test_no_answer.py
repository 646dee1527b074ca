"""What gets no answer, or a late one: nothing stays held by nobody, and no renewal ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from django.db import connections

from django_tasklock import Lease, LockNotAcquired, StoreUnavailable, lock, locks, signals
from django_tasklock.stores import stores
from django_tasklock.stores.base import Note
from tests import steps
from tests.conftest import UseCaches, UseRedis
from tests.inside import asked, give_up, given_up, kept, looks_before, retry_soon, unreserve_later
from tests.proxy import CutProxy
from tests.servers import RedisServer, free_port
from tests.steps import LONG, RENEWED, SOON_SECONDS, Meanwhile, renewed, taken
from tests.store_cases import redis_cache
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("on_redis")


@pytest.mark.parametrize("verb", ["acquire", "acquire_all", "adopt"])
def test_lease_is_nobodys_at_no_moment(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a store's thread that looks in the very moment of the grant
    handle = taken("video:1").detach() if verb == "adopt" else "video:1"
    looks_before(monkeypatch, "alone")
    # I expect the lease to be the caller's all the same
    got: Any = getattr(locks, verb)([handle] if verb == "acquire_all" else handle)
    assert (got[0] if verb == "acquire_all" else got).release()


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_receiver_that_raises_and_what_it_has_left_open_end_no_renewal(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(lease: Lease | None = None, **_: Any) -> None:
        if lease is None or lease.name == "video:1":
            raise error

    monkeypatch.setattr(connections, "close_all", fail)
    signals.lock_lost.connect(fail)
    other, lease = (taken(name, ttl=RENEWED, renew=True) for name in ("video:2", "video:1"))
    locks.clear("video:1")
    until(lambda: "lost" in repr(lease), "its loss")
    renewed(other, 2)
    signals.lock_lost.disconnect(fail)


def a_block(**options: Any) -> None:
    with lock("video:1", ttl=LONG, **options) as lease:
        lease.extend()


def nested_blocks() -> None:
    with lock("video:1", ttl=LONG, reentrant=True):
        with lock(["video:1", "video:2", "video:3"], ttl=LONG, reentrant=True):
            pass
        with pytest.raises(LockNotAcquired):
            lock(["video:1", "video:4"]).__enter__()


def a_lease_that_is_handed_on() -> None:
    with lock("video:1", ttl=1.0) as lease:
        adopted = locks.adopt(lease.detach(ttl=0.5), renew=True)
        assert adopted is None or adopted.release()


@pytest.mark.parametrize("done", [False, True], ids=["unasked", "unanswered"])
@pytest.mark.parametrize(
    "work",
    [a_block, partial(a_block, cooldown=0.01), nested_blocks, a_lease_that_is_handed_on],
    ids=["block", "cooling", "nested", "handed-on"],
)
def test_each_call_that_gets_no_answer(
    work: Callable[[], None], done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is nothing worse than `StoreUnavailable`, and leaves nothing; ``done``: it is carried out."""
    retry_soon(monkeypatch)
    left, number, store, lost = 0, 0, stores["default"], list[str]()
    leases = {"acquire", "acquire_all", "release", "extend", "extend_many", "rewrite", "get"}

    def call(verb: str, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left != 0:
            return method(*args, **options)
        lost.append(verb)
        if done:
            method(*args, **options)
        raise StoreUnavailable("default", f"no answer to {verb}")

    for verb in leases | {"clear"}:
        monkeypatch.setattr(store, verb, partial(call, verb, getattr(store, verb)))
    while len(lost) == number:
        number += 1
        left = number
        with suppress(StoreUnavailable):
            work()
        left = 0
        until(lambda: locks.count() + kept() == 0, f"the end of all after {lost[-1:]}", 20)
    assert number > 2


def test_tokens_of_an_outage_do_not_make_the_next_failure_dearer(
    use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is given up once, and is not looked at before the store may answer."""
    use_redis(f"redis://127.0.0.1:{free_port()}")
    looked_at = given_up(monkeypatch)
    for number in range(100):
        with pytest.raises(StoreUnavailable):
            locks.acquire(f"video:{number}")
    assert 100 <= len(looked_at) <= 200


def test_what_an_outage_has_left_is_looked_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a few calls; and what the store has of it is given back, the notes of its acquires too."""
    retry_soon(monkeypatch)
    store, calls = stores["default"], list[str]()
    acquire = store.acquire

    def unanswered(*question: Any) -> Any:
        if question[0][0].endswith("0"):
            acquire(*question)
        raise StoreUnavailable("default", "no answer")

    with monkeypatch.context() as outage:
        steps.silent(outage, "get", "release", "unreserve")
        outage.setattr(store, "acquire", unanswered)
        for number in range(100):
            note = Note(f"note:{number}", f"{number} begun", LONG) if number % 3 == 0 else None
            with pytest.raises(StoreUnavailable):
                asked(f"video:{number}", ttl=LONG, note=note)
    assert (locks.count(), store.get_note("note:0")) == (10, "0 begun")

    def count(verb: str, method: Callable[..., Any], *args: Any) -> Any:
        calls.append(verb)
        return method(*args)

    for verb in ("get", "release", "unreserve"):
        monkeypatch.setattr(store, verb, partial(count, verb, getattr(store, verb)))
    until(lambda: kept() == 0, "the last look")
    assert (locks.count(), store.get_note("note:0")) == (0, None)
    assert len(calls) < 100, calls


def test_what_the_server_never_does_keeps_nothing_else_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as to remove notes, where an ACL forbids it."""
    lease, refused = taken("video:1", ttl=LONG), steps.silent(monkeypatch, "unreserve")
    for number in range(1000):
        unreserve_later(f"note:{number}", "begun")
    until(lambda: len(refused) > 1)
    give_up(lease)
    until(lambda: not locks.is_locked("video:1"), "the release")
    assert len(refused) < 100


def test_client_that_cannot_listen_polls_until_it_can(
    cut_proxy: CutProxy, redis_server: RedisServer, use_caches: UseCaches
) -> None:
    """Then it stands in the queue, or others there would be served for ever before it."""
    # The holder goes another way, and is not cut off.
    through = redis_cache(cut_proxy.url)
    caches = {"default": through, "direct": through | {"LOCATION": redis_server.url}}
    use_caches(caches, {"default": {}, "direct": {"CACHE": "direct"}})
    direct = locks.using("direct")
    lease = direct.acquire("video:1", ttl=LONG)
    assert lease is not None
    assert locks.acquire("video:1") is None
    cut_proxy.refuse()
    traffic = steps.Traffic(redis_server)
    thread = Meanwhile(lambda: taken("video:1", wait=None))
    until(lambda: traffic.scripts() > 4, "polling")
    assert direct.waiters("video:1") == []
    cut_proxy.accept()
    until(lambda: direct.waiters("video:1"), "joining the queue")
    lease.release()
    assert thread.result(SOON_SECONDS).held


@pytest.mark.parametrize(("wait", "slots"), [(0, 1), (None, 1), (None, 2)])
def test_answers_that_take_longer_than_the_lease_lasts_grant_nothing(
    cut_proxy: CutProxy, use_redis: UseRedis, wait: float | None, slots: int
) -> None:
    """No work begins without the lock."""
    use_redis(cut_proxy.url)
    locks.is_locked("job:1")
    cut_proxy.latency = 0.05
    with pytest.raises(StoreUnavailable, match=r"later than a lease of 0\.05 s lasts"):
        locks.acquire("job:1", ttl=cut_proxy.latency, wait=wait, slots=slots)
    names = ("job:1", "job:1#1", "job:1#2")
    until(lambda: not any(map(locks.is_locked, names)), "the end of what was granted")
