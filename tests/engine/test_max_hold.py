"""``max_hold``: a lease that no extension puts off beyond a moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse

from django_tasklock import Lease, LeaseLost, lock, locks
from django_tasklock.signals import lock_lost
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore, Extension
from django_tasklock.tasks import locked
from django_tasklock.views import lock_view
from tests.inside import clock, read_handle
from tests.steps import (
    LONG,
    RENEWED,
    Meanwhile,
    ends,
    holder,
    in_child,
    sent,
    server,
    silent,
    taken,
    waiter,
)
from tests.waiting import until

NAME = "video:1"
LIMIT = 5.0
FAR = 30.0
"""seconds; a limit that no test waits for"""
LATE = 5.0
"""seconds that a busy machine may take for a round trip"""
WORDS = "held for longer than max_hold"


def end_on_the_server(name: str = NAME) -> float:
    """When the key is gone, on the clock of this process; a moment more."""
    key = stores["default"].key(name)
    return float(server().pttl(key)) / 1000 + clock.now()


def extended_to(lease: Lease, end: float) -> None:
    """Wait until a lease lasts up to this moment at least."""
    until(lambda: not lease.held or ends(lease) > end - 0.01, "an extension")
    assert lease.held


@pytest.fixture
def extensions(on_redis: None, monkeypatch: pytest.MonkeyPatch) -> list[Extension]:
    """What the store's thread has asked for."""
    asked, extend = list[Extension](), stores["default"].extend_many

    def extend_many(batch: Sequence[Extension]) -> Sequence[bool | None]:
        asked.extend(batch)
        return extend(batch)

    monkeypatch.setattr(stores["default"], "extend_many", extend_many)
    return asked


@pytest.mark.usefixtures("on_redis")
class TestOnRedis:
    def test_server_and_holder_agree_and_the_next_waiter_gets_the_lock_then(
        self, extensions: list[Extension]
    ) -> None:
        # Given a lease whose first extension would put its end beyond the limit; and a waiter
        before = clock.now()
        lease = taken(NAME, ttl=RENEWED, renew=True, max_hold=LIMIT)
        after = clock.now()
        other = taken("other", ttl=RENEWED, renew=True)
        next_one = Meanwhile(lambda: (taken(NAME, wait=None), clock.now()))
        with sent(lock_lost) as told:
            # I expect it to end at the limit exactly, on both clocks
            extended_to(lease, before + LIMIT)
            assert ends(lease) < after + LIMIT
            (extension,) = [each for each in extensions if each.name == NAME]
            assert lease.remaining <= extension.ttl < RENEWED
            assert before + LIMIT < end_on_the_server() < after + LIMIT + LATE
            # And that to be told then, with its reason
            until(lambda: told, "the loss")
            assert clock.now() >= before + LIMIT
        said = [(each["lease"], each["reason"], each["cause"]) for each in told]
        assert said == [(lease, WORDS, "expired")]
        # And the waiter to get the lock then
        _, granted = next_one.result()
        assert granted >= before + LIMIT
        # And one extension to be all that it took, though another was extended all the time
        names = [each.name for each in extensions]
        assert (names.count(NAME), names.count("other") > 1, other.held) == (1, True, True)

    def test_near_the_end_an_outage_makes_no_storm(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lease = taken(NAME, ttl=3.0, renew=True, max_hold=3.01)
        with sent(lock_lost) as told:
            asked = silent(monkeypatch, "extend_many")
            until(lambda: told, "the loss")
        assert (len(told), told[0]["lease"], 1 <= len(asked) <= 10) == (1, lease, True)

    def test_it_counts_from_the_hand_over_and_not_from_the_question(self) -> None:
        # Given a waiter that has asked some time ago
        first, asked = taken(NAME), clock.now()
        second = waiter(NAME, 1, ttl=LIMIT, renew=True, max_hold=LIMIT)
        until(lambda: clock.now() > asked + LIMIT / 5)
        handed = clock.now()
        assert first.release()
        lease = second.result()
        # I expect it to have the lock for as long as one that did not wait
        extended_to(lease, handed + LIMIT)
        assert ends(lease) < clock.now() + LIMIT
        assert ends(lease) - 0.01 < end_on_the_server() < ends(lease) + LATE


def first_of_all(*names: str, **how: Any) -> Any:
    leases = locks.acquire_all(names, **how)
    assert leases is not None
    return leases[0]


ASKS: dict[str, Callable[..., Any]] = {
    "acquire": locks.acquire,
    "acquire_all": first_of_all,
    "acquire_all of two": partial(first_of_all, "a"),
    "a permit": partial(locks.acquire, slots=2),
}


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_whoever_asks_for_more_gets_what_is_left(store: BaseStore, ask: Any) -> None:
    lease = ask(NAME, ttl=LONG, max_hold=FAR)
    assert lease.remaining <= lease.ttl <= FAR
    assert (holder(lease.name).ttl or 0.0) <= FAR + LATE
    # And who is content with less gets that.
    assert lease.extend(LIMIT)
    assert lease.remaining <= LIMIT
    assert lease.extend(LONG)
    assert LIMIT < lease.remaining <= FAR
    assert (holder(lease.name).ttl or 0.0) <= FAR + LATE
    assert lease.release()


def test_when_it_is_over_nothing_extends_it(each_store: BaseStore) -> None:
    lease = taken(NAME, ttl=LONG, max_hold=1.5)
    until(lambda: not lease.held, "its end")
    assert (lease.extend(), lease.extend(LONG), lease.release()) == (False, False, False)
    with pytest.raises(LeaseLost, match=WORDS):
        lease.assert_held()
    until(lambda: locks.acquire(NAME), "the next holder")


def test_cooling_goes_on_beyond_it_and_an_inner_block_does_not_change_it(store: BaseStore) -> None:
    with lock(NAME, ttl=LONG, reentrant=True, hold_at_least=LONG) as lease:
        with lock(NAME, reentrant=True, max_hold=LIMIT) as inner:
            assert inner is lease
        assert lease.remaining > LIMIT
    with lock("b", ttl=LONG, max_hold=LIMIT, hold_at_least=LONG) as lease:
        assert lease.remaining <= LIMIT
    assert holder("b").cooling
    assert (holder("b").ttl or 0.0) > LIMIT + LATE


@pytest.mark.parametrize("wrong", [0, -1, True, "5", float("inf"), float("nan"), 0.0001])
def test_what_is_no_ttl_is_refused(wrong: Any) -> None:
    for ask in (lock, locks.acquire):
        with pytest.raises((TypeError, ValueError), match="max_hold must be"):
            ask(NAME, max_hold=wrong)


class TestHandedOn:
    def test_another_process_that_adopts_it_keeps_its_limit(self, on_redis: None) -> None:
        # Given a lease with a limit, which is detached for longer than that
        lease = taken(NAME, ttl=20.0, max_hold=40.0)
        handle = lease.detach(ttl=LONG)
        assert 20.0 < (holder(NAME).ttl or 0.0) <= 40.0 + LATE

        def go_on() -> Any:
            adopted = locks.adopt(handle, renew=True)
            assert adopted is not None
            return adopted.ttl, adopted.extend(LONG), adopted.remaining, adopted.detach()

        # I expect its adopter to extend it up to the limit, and no further, and the next one too
        ttl, extended, remaining, following = in_child(go_on)
        assert (ttl, extended) == (20.0, True)
        assert 20.0 < remaining < 40.0
        last = locks.adopt(following)
        assert last is not None
        assert last.extend(LONG)
        assert last.remaining < remaining

    def test_who_adopts_it_late_gets_what_is_left(self, store: BaseStore) -> None:
        lease = taken(NAME, ttl=LIMIT, max_hold=LIMIT)
        handle, end = lease.detach(), ends(lease) + LIMIT
        adopted = locks.adopt(handle)
        assert adopted is not None
        assert ends(adopted) < end
        until(lambda: not adopted.held, "its end")
        with pytest.raises(LeaseLost, match=WORDS):
            adopted.assert_held()

    def test_the_handle_of_a_lease_without_one_says_no_end(self, store: BaseStore) -> None:
        assert read_handle(taken(NAME).detach()).limit == float("inf")


def function_under_a_lock(decorator: Any) -> float:
    return float(decorator(lambda: holder(NAME).ttl)())


def view_under_a_lock(decorator: Any) -> float:
    answer = decorator(lambda request: HttpResponse(str(holder(NAME).ttl)))(HttpRequest())
    return float(answer.content)


@pytest.mark.parametrize(
    ("decorator", "ttl_of"),
    [
        (lock, function_under_a_lock),
        (locked, function_under_a_lock),
        (lock_view, view_under_a_lock),
    ],
)
def test_a_decorator_bounds_the_lease_of_each_call(
    store: BaseStore, decorator: Any, ttl_of: Callable[[Any], float]
) -> None:
    assert 0 < ttl_of(decorator(NAME, ttl=LONG, max_hold=LIMIT)) <= LIMIT + LATE
