"""Verbs for many locks at once, for operators, and for a lease that goes on without its process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any
from unittest.mock import patch

import pytest

from django_tasklock import LockInfo
from django_tasklock.exceptions import ListingNotSupported, StoreUnavailable
from django_tasklock.stores.base import BaseStore, Extension, Finding, Grant, Note, Refusal
from django_tasklock.stores.records import Entry, Held
from django_tasklock.stores.redis import RedisStore
from django_tasklock.testing.steps import (
    LONG_SECONDS,
    ROUNDING_SECONDS,
    TIMEOUT_SECONDS,
    ContractTests,
    Granted,
    asked,
    assert_held_by,
    granted,
    in_threads,
    needs,
    new_name,
    refused,
    until,
)
from tests.inside import Owner, clock, new_token, operator_record, owner_record, permit_names
from tests.steps import in_child

__all__ = ["Forking", "OtherVerbs", "Rewriting", "TakingSeveral"]

SHORT_SECONDS = LONG_SECONDS / 3
DAY_MICROSECONDS = 24 * 3600 * 10**6


def lasts_from_now(holder: Granted, ttl: float) -> None:
    """Wait until the lease is shown to last for ``ttl`` from now.

    Of several servers, the slowest one may answer with what it had before.
    """

    def lasts() -> bool:
        left = assert_held_by(holder).ttl
        assert left is not None
        return ttl - TIMEOUT_SECONDS < left <= ttl + ROUNDING_SECONDS

    until(lasts)


def assert_describes(
    info: LockInfo, holder: Granted, owner: Mapping[str, Any], before: float
) -> None:
    """``info`` is of a lease of `LONG_SECONDS` that began after ``before``, on `clock.now`."""
    assert (info.name, info.token, info.store) == (holder.name, holder.token, holder.store.alias)
    assert info.key
    assert info.owner == Owner.from_record(owner)
    passed = clock.now() - before
    assert info.ttl is not None
    assert LONG_SECONDS - passed - 0.1 <= info.ttl <= LONG_SECONDS + ROUNDING_SECONDS
    assert info.acquired_at is not None
    # Two machines' clocks may differ; the same instant in two time zones is an hour apart.
    age = abs(datetime.now(timezone.utc) - info.acquired_at)
    assert age < timedelta(minutes=5)


class OtherVerbs(ContractTests):
    """The contract of `extend_many`, `walk`, `close_idle` and `check`, and of verbs that most
    stores leave to `BaseStore`."""

    def test_no_permit_is_granted_while_the_lock_itself_is_held(self) -> None:
        """Who has one keeps it, and is granted it again after a lost reply."""
        store, base, owner = self.make_store(), new_name(), owner_record() | {"slots": 2}
        first, second = permit_names(base, 2)
        own, gate = granted(store, first, owner=owner), granted(store, base)
        again = granted(store, first, token=own.token, owner=owner)
        assert again.grant.fence == own.grant.fence
        assert own.release()
        for name in (first, second):
            answer = asked(store, name, owner=owner)
            assert isinstance(answer, Refusal), "a permit was granted beside the lock itself"
            assert answer.holder.token == gate.token
        assert gate.release()
        granted(store, first, owner=owner)

    def test_it_may_have_given_each_fence_that_it_has_given_and_none_of_tomorrow(self) -> None:
        """By it the doctor tells a row of another store, where the store knows."""
        store, name = self.make_store(), new_name()
        own = granted(store, name)
        assert own.release()
        fence = own.grant.fence or 0
        assert store.may_have_given(name, fence)
        if type(store).may_have_given is not BaseStore.may_have_given:
            assert not store.may_have_given(name, fence + DAY_MICROSECONDS)

    def test_no_permit_is_granted_if_the_lock_is_taken_in_the_last_moment(self) -> None:
        """Between the look at both and the write, in a store where these are two steps."""
        store, base, owner = self.make_store(), new_name(), owner_record() | {"slots": 2}
        look, gates, (permit, _) = store.get, list[Granted](), permit_names(base, 2)

        def looks(names: Sequence[str]) -> list[Entry | None]:
            found = look(names)
            looking.stop()
            gates.append(granted(store, base))
            return [*found]

        looking = patch.object(store, "get", looks)
        looking.start()
        answer = asked(store, permit, owner=owner)
        looking.stop()
        if isinstance(store, RedisStore):  # One step, which looks at the server.
            assert isinstance(answer, Granted)
            return
        assert gates
        assert isinstance(answer, Refusal)
        assert store.find(permit) is None

    def test_asking_again_with_the_same_token_is_granted_again(self) -> None:
        """A client asks again after a lost reply, and its own lease must not refuse it. The lease
        lasts from then, and from an extension."""
        store = self.make_store()
        first = granted(store)
        for ttl in (4 * LONG_SECONDS, LONG_SECONDS):
            again = granted(store, first.name, token=first.token, ttl=ttl)
            assert again.grant.fence == first.grant.fence
            lasts_from_now(again, ttl)
            assert again.extend(ttl / 2) is True
            lasts_from_now(again, ttl / 2)
        assert refused(store, first.name).token == first.token
        assert again.release()
        assert store.find(first.name) is None

    def test_a_batch_is_extended_each_on_its_own(self) -> None:
        store = self.make_store()
        holders = [granted(store) for _ in range(12)]
        for holder in holders[::3]:
            assert holder.release()
        batch = [Extension(holder.name, holder.token, 4 * LONG_SECONDS) for holder in holders]
        assert [*store.extend_many(batch)] == [number % 3 != 0 for number in range(12)]
        lasts_from_now(holders[1], 4 * LONG_SECONDS)
        assert [*store.extend_many([])] == []

    def test_a_walk_sees_once_what_is_held_all_the_time(self) -> None:
        store, prefix = self.make_store(), f"{new_name()}:"
        needs(store.supports_listing, "lists")
        names = [f"{prefix}{number}" for number in range(12)]
        holders = {
            name: granted(store, name, ttl=LONG_SECONDS * (1 + number))
            for number, name in enumerate(names)
        }
        seen: list[str] = []
        for info in store.walk(prefix):
            if not seen:
                # What was read is released, what was not is extended to the end.
                assert holders[info.name].release()
                assert holders[names[1]].extend(LONG_SECONDS * 20)
            seen.append(info.name)
        assert sorted(seen) == sorted(names)

    def test_find_describes_an_operators_hold(self) -> None:
        """An owner without a process, whose texts are as long as they get."""
        store, before = self.make_store(), clock.now()
        owner = operator_record("维" * 85, "数据库迁移 " + "é" * 100)
        holder = granted(store, owner=owner)
        for held in (assert_held_by(holder), refused(store, holder.name)):
            assert_describes(held, holder, owner, before)
            assert (held.held_by, held.reason) == (owner["held_by"], owner["reason"])

    def test_a_lease_outlives_the_connections_that_are_idle(self) -> None:
        store = self.make_store()
        holder = granted(store)
        store.close_idle()
        assert refused(store, holder.name).token == holder.token
        store.close_idle()
        assert holder.release()

    def test_check_yields_findings(self) -> None:
        assert all(isinstance(found, Finding) for found in self.make_store().check())

    def test_a_store_that_cannot_list_says_so(self) -> None:
        store = self.make_store()
        needs(not store.supports_listing, "cannot list")
        for question in (store.list, store.walk, store.page, store.count, store.reservations):
            with pytest.raises(ListingNotSupported):
                pytest.fail(f"it answered: {[*question()]}")  # type: ignore[misc]

    def test_what_is_made_of_the_three_methods_is_an_outage_too(self) -> None:
        store, name, token = self.make_silent_store(), new_name(), new_token()
        needs(store is not None, "can be made without its server")
        assert store is not None
        owner, note = owner_record(), Note(name, "a", LONG_SECONDS)
        verbs: list[Callable[[], object]] = [
            lambda: store.acquire([name], token, LONG_SECONDS, owner),
            lambda: store.extend(name, token, LONG_SECONDS),
            lambda: store.extend_many([Extension(name, token, LONG_SECONDS)]),
            lambda: store.release(name, token),
            lambda: store.clear(name),
            lambda: store.get_note(name),
            lambda: store.rewrite(name, Held(token), LONG_SECONDS, owner, "a"),
            lambda: store.find(name),
            lambda: store.set_note(note),
            lambda: store.reserve(name, "a", LONG_SECONDS),
            lambda: store.unreserve(name, "a"),
        ]
        if store.puts_together:
            verbs.append(lambda: store.acquire_all({name: token}, LONG_SECONDS, owner))
        if store.supports_listing:
            verbs.append(store.count)
        for verb in verbs:
            with pytest.raises(StoreUnavailable) as raised:
                verb()
            assert raised.value.store == store.alias


class TakingSeveral(ContractTests):
    """The contract of `acquire` for the permits of a name, and of `acquire_all`."""

    def test_the_first_free_one_of_several_permits_is_granted(self) -> None:
        store, names = self.make_store(), permit_names(new_name(), 3)
        granted(store, names[1], owner=owner_record() | {"slots": 3})
        taken = []
        for expected in names[::2]:
            token = new_token()
            for _ in range(2):  # As after a lost reply.
                grant = store.acquire(names, token, LONG_SECONDS, owner_record() | {"slots": 3})
                assert isinstance(grant, Grant)
                assert grant.name == expected
                assert bool(grant.fence) == store.supports_fence
            taken.append((expected, token))
            assert shown(store, expected).owner.slots == 3
        refusal = store.acquire(names, new_token(), LONG_SECONDS, owner_record() | {"slots": 3})
        assert isinstance(refusal, Refusal)
        assert sorted(info.name for info in refusal.holders) == names
        for name, token in taken:
            assert store.release(name, token)

    def test_several_locks_are_granted_each_with_its_own_token(self) -> None:
        store, tokens = self.make_store(), {new_name(): new_token() for _ in range(3)}
        for _ in range(2):  # As after a lost reply.
            grants = store.acquire_all(tokens, LONG_SECONDS, owner_record("videos.process"))
            if not store.puts_together:
                assert grants is None
                return
            assert isinstance(grants, list)
            assert [grant.name for grant in grants] == [*tokens]
            for (name, token), grant in zip(tokens.items(), grants, strict=True):
                info = assert_held_by(Granted(store, name, token, grant))
                assert (info.owner.task, info.fence) == ("videos.process", grant.fence)
        for name, token in tokens.items():
            assert store.release(name, token)

    def test_of_several_locks_none_is_granted_if_one_is_held(self) -> None:
        store, tokens = self.make_store(), {new_name(): new_token() for _ in range(3)}
        needs(store.puts_together, "grants several locks in one step")
        for name in tokens:
            held = granted(store, name)
            answer = store.acquire_all(tokens, LONG_SECONDS, owner_record())
            assert isinstance(answer, Refusal)
            assert [(info.name, info.token) for info in answer.holders] == [(name, held.token)]
            assert [each for each in tokens if store.find(each) is not None] == [name]
            assert held.release()


class Rewriting(ContractTests):
    """The contract of `rewrite`."""

    def test_a_rewritten_lease_is_the_same_lease_with_another_owner(self) -> None:
        store = self.make_store()
        needs(store.atomic_release, "compares and writes in one step")
        holder = granted(store)
        before, another = shown(store, holder.name), owner_record("videos.процесс", "id-5")
        for _ in range(2):  # As after a lost reply.
            grant = store.rewrite(holder.name, Held(holder.token), SHORT_SECONDS, another, "a")
            assert grant is not None
            assert (grant.name, grant.fence) == (holder.name, holder.grant.fence)
        info = assert_held_by(holder)
        assert (info.ttl or 0) <= SHORT_SECONDS + ROUNDING_SECONDS
        assert info.owner == Owner.from_record(another)
        assert info.fence == before.fence
        assert refused(store, holder.name).token == holder.token
        assert holder.extend(LONG_SECONDS)
        assert holder.release()
        assert store.find(holder.name) is None

    def test_of_many_that_adopt_at_once_one_does(self) -> None:
        store = self.make_store()
        needs(store.atomic_release, "compares and writes in one step")
        _, name, token, _ = granted(store)
        assert store.rewrite(name, Held(token), LONG_SECONDS, owner_record(), "detached")
        won: list[str] = []

        def adopt() -> None:
            version = new_token()
            held, owner = Held(token, "detached"), owner_record(version)
            if store.rewrite(name, held, LONG_SECONDS, owner, version):
                won.append(version)

        in_threads(8, adopt)
        assert won == [shown(store, name).owner.task]


class Forking(ContractTests):
    @pytest.mark.usefixtures("each_fork")
    def test_a_forked_child_and_its_parent_both_go_on(self) -> None:
        assert_a_child_and_its_parent_go_on(self.make_store())


def assert_a_child_and_its_parent_go_on(store: BaseStore) -> None:
    """Connections, threads and locks of the parent are not in the child's way, nor its own in the
    parent's."""
    holder, name = granted(store), new_name()

    def child() -> list[bool]:
        refused(store, holder.name)
        own = granted(store, name)
        return [own.extend(LONG_SECONDS), own.release()]

    for _ in range(2):
        assert in_child(child) == [True, True]
        assert holder.extend(LONG_SECONDS)
    assert holder.release()


def shown(store: BaseStore, name: str) -> LockInfo:
    """What `find` shows of a lock that is held."""
    held = store.find(name)
    assert held is not None, f"nobody holds {name!r}"
    return held
