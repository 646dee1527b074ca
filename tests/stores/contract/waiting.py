"""The wait queue: who waits is handed the lock, in order."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from django_tasklock.stores.base import BaseStore, Grant, Question, Refusal, Waiter
from django_tasklock.stores.records import Held
from django_tasklock.testing.steps import (
    LONG_SECONDS,
    TIMEOUT_SECONDS,
    ContractTests,
    Granted,
    assert_held_by,
    granted,
    needs,
    new_name,
    refused,
    until,
)
from tests.inside import clock, new_token, owner_record, permit_names

from .verbs import shown

__all__ = ["Waiting"]


class Waiting(ContractTests):
    """The contract of `waiter` and `waiters`, of a store with ``supports_waiting``."""

    def test_a_waiter_of_a_lock_that_is_not_held_is_granted_it(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        waiter = store.waiter(Question([name], token, LONG_SECONDS, owner_record()))
        if not store.supports_waiting:
            assert waiter is None
            assert store.waiters(name) == []
            return
        assert waiter is not None
        assert isinstance(waiter.ask(), Grant)
        assert store.release(name, token)

    def test_a_release_hands_the_lock_over_in_order(self) -> None:
        """Of their first questions."""
        holder, waiters = queue(self.make_store(), 3)
        assert isinstance(waiters[0].waiter.ask(), Refusal)
        for waiter in waiters:
            assert holder.release()
            refused(holder.store, holder.name)  # No new caller overtakes it.
            holder = waiter.handed_over()
            assert assert_held_by(holder).fence == holder.grant.fence
        assert holder.release()
        assert holder.store.find(holder.name) is None

    def test_clear_hands_the_lock_over(self) -> None:
        holder, (following,) = queue(self.make_store(), 1)
        assert holder.store.clear(holder.name) is True
        assert following.handed_over().release()

    def test_a_waiter_that_left_is_not_handed_the_lock(self) -> None:
        holder, (gone, stays) = queue(self.make_store(), 2)
        assert gone.waiter.leave() is None
        assert holder.release()
        assert stays.handed_over().release()

    def test_a_waiter_that_leaves_after_the_hand_over_gets_the_grant(self) -> None:
        holder, (following,) = queue(self.make_store(), 1)
        assert holder.release()
        grant = following.waiter.leave()
        assert grant is not None
        assert grant.fence == shown(holder.store, holder.name).fence
        assert holder.store.release(holder.name, following.token)

    def test_wait_without_news_returns_none_in_time(self) -> None:
        _, (following,) = queue(self.make_store(), 1)
        before = clock.now()
        assert following.waiter.wait(0.05) is None
        assert clock.now() - before < TIMEOUT_SECONDS
        assert following.waiter.leave() is None

    def test_a_lease_that_ends_by_itself_makes_room_for_the_first_waiter(self) -> None:
        holder, (first, second) = queue(self.make_store(), 2)
        assert holder.extend(0.2)
        until(lambda: isinstance(first.waiter.ask(), Grant))
        assert shown(holder.store, holder.name).token == first.token
        assert second.waiter.leave() is None

    def test_the_next_waiter_hears_who_holds_the_lock_now(self) -> None:
        holder, (first, second) = queue(self.make_store(), 2)
        assert holder.release()
        first.handed_over()
        assert heard(second, first.token) is None
        owner = owner_record("adopted")
        assert holder.store.rewrite(holder.name, Held(first.token), LONG_SECONDS, owner, "a")
        assert heard(second, first.token) == "adopted"
        assert second.waiter.leave() is None

    def test_a_permit_goes_to_the_first_that_may_have_it(self) -> None:
        store, names = self.make_store(), permit_names(new_name(), 2)
        needs(store.supports_waiting, "hands over to waiters")
        owner = owner_record() | {"slots": 2}
        one, two = (granted(store, name, owner=owner) for name in names)
        first = queued(store, names[0], slots=1)
        second = queued(store, *names, slots=2)
        assert len(store.waiters(names[0].rpartition("#")[0])) == 2
        assert two.release()
        assert second.handed_over().name == names[1]
        assert one.release()
        assert first.handed_over().name == names[0]

    def test_who_waits_for_a_permit_gets_none_before_the_lock_itself_is_free(self) -> None:
        store, base = self.make_store(), new_name()
        needs(store.supports_waiting, "hands over to waiters")
        names, owner = permit_names(base, 2), owner_record() | {"slots": 2}
        holder, gate = granted(store, names[0], owner=owner), granted(store, base)
        waiters = [queued(store, *names, slots=2) for _ in range(2)]
        assert holder.release()
        assert waiters[0].waiter.wait(0.1) is None
        assert store.get(names) == [None, None]
        assert gate.release()
        assert [each.handed_over(asks_again=True).name for each in waiters] == names

    def test_an_event_loop_is_woken_by_the_hand_over(self) -> None:
        holder, (following,) = queue(self.make_store(), 1)
        woken = threading.Event()
        assert following.waiter.wake_by(woken.set) > 0
        assert following.waiter.wait(0) is None
        assert following.waiter.wake_by(woken.set) > 0
        assert holder.release()
        until(woken.is_set)
        assert following.handed_over().release()

    def test_a_queue_shows_who_waits_and_since_when(self) -> None:
        """The first question counts."""
        holder, (first, second) = queue(self.make_store(), 2)
        store, name = holder.store, holder.name
        info, owners = shown(store, name), store.waiters(name)
        assert len(owners) == 2
        assert store.waiters(name, 1) == owners[:1]
        since = [owner.waiting_since for owner in owners]
        assert info.waiting_since == since[0]
        assert info.waiters in (None, 2)
        if since[0] is not None:
            # Two machines' clocks may differ; the same instant in two time zones is an hour apart.
            assert abs(datetime.now(timezone.utc) - since[0]) < timedelta(minutes=5)
        later = datetime.now(timezone.utc) + timedelta(seconds=0.05)
        until(lambda: datetime.now(timezone.utc) > later)
        assert isinstance(first.waiter.ask(), Refusal)
        assert [owner.waiting_since for owner in store.waiters(name)] == since
        assert first.waiter.leave() is None
        assert shown(store, name).waiting_since == since[1]
        assert second.waiter.leave() is None
        assert store.waiters(name) == []
        assert shown(store, name).waiting_since is None


class Queued(NamedTuple):
    """Who stands in the wait queue of a lock, or of some permits."""

    store: BaseStore
    token: str
    waiter: Waiter

    def handed_over(self, *, asks_again: bool = False) -> Granted:
        """Wait to be told. ``asks_again``: it may also be told to ask."""
        deadline = clock.now() + TIMEOUT_SECONDS
        while clock.now() < deadline:
            news = self.waiter.wait(deadline - clock.now())
            if news is None and asks_again and self.waiter.cut:
                news = self.waiter.ask()
            if isinstance(news, Grant):
                return Granted(self.store, news.name, self.token, news)
        raise AssertionError("the lock was not handed over")


def queued(store: BaseStore, *names: str, **owner: Any) -> Queued:
    """A new waiter in the wait queue of a lock that is held, or of some permits."""
    token = new_token()
    waiter = store.waiter(Question(names, token, LONG_SECONDS, owner_record() | owner))
    assert waiter is not None
    assert isinstance(waiter.ask(), Refusal)
    return Queued(store, token, waiter)


def queue(store: BaseStore, length: int) -> tuple[Granted, list[Queued]]:
    """The holder of a new lock and who waits for it; the test is skipped if the store has no
    wait queues."""
    needs(store.supports_waiting, "hands over to waiters")
    holder = granted(store)
    return holder, [queued(store, holder.name) for _ in range(length)]


def heard(waiter: Queued, token: str) -> str | None:
    """The task of this lease, as soon as the waiter is told that it holds the lock."""
    told: list[Refusal] = []

    def tells() -> bool:
        news = waiter.waiter.wait(1.0)
        told.extend([news] if isinstance(news, Refusal) and news.holder.token == token else [])
        return bool(told)

    until(tells)
    return told[0].holder.owner.task
