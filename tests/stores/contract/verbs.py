"""Verbs for many locks at once, and for operators."""

from __future__ import annotations

from django_tasklock._values import clock
from django_tasklock._values.owner import operator_record
from django_tasklock.exceptions import ListingNotSupported
from django_tasklock.stores.base import Extension, Finding
from django_tasklock.testing.steps import (
    LONG_SECONDS,
    ContractTests,
    assert_describes,
    assert_held_by,
    granted,
    lasts_from_now,
    listing,
    new_name,
    refused,
)

__all__ = ["OtherVerbs"]


class OtherVerbs(ContractTests):
    """The contract of `extend_many`, `walk`, `endless`, `close_idle` and `check`."""

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
        store, prefix = listing(self.make_store()), f"{new_name()}:"
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
        held = assert_held_by(holder)
        assert_describes(held, holder, owner, before)
        assert (held.held_by, held.reason) == (owner["held_by"], owner["reason"])

    def test_endless_yields_no_lease(self) -> None:
        store = self.make_store()
        name = granted(store).name
        try:
            assert name not in {info.name for info in store.endless()}
        except ListingNotSupported:
            pass  # It cannot tell its keys from others.

    def test_a_lease_outlives_the_connections_that_are_idle(self) -> None:
        store = self.make_store()
        holder = granted(store)
        store.close_idle()
        assert refused(store, holder.name).token == holder.token
        store.close_idle()
        assert holder.release()

    def test_check_yields_findings(self) -> None:
        assert all(isinstance(found, Finding) for found in self.make_store().check())
