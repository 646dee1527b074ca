"""Changes in any order and on any condition: each store does with them what a dict would.

Whether a change can be made, and what is there then, is said by `fits` and `after`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_tasklock.stores.base import BaseStore
from django_tasklock.stores.records import (
    ANY,
    FREE,
    KEEP,
    Change,
    Entry,
    Foreign,
    Held,
    Record,
    after,
    fits,
)
from django_tasklock.testing.steps import LONG_SECONDS, new_name

TOKENS, VERSIONS = ("a" * 22, "b" * 22), (None, "v" * 22, "w" * 22)
LOCKS = 3


class Lease(NamedTuple):
    token: str
    version: str | None


class Step(NamedTuple):
    """A change of one of the locks, and the lease that it writes, if any."""

    lock: int
    expect: str | Held
    writes: Lease | str | None

    def change(self, names: Sequence[str]) -> Change:
        record: Record | str | None = self.writes if isinstance(self.writes, str) else None
        if isinstance(self.writes, Lease):
            version = {"version": self.writes.version} if self.writes.version else {}
            record = {"token": self.writes.token, "at": 1.0, **version}
        return Change(names[self.lock], self.expect, record, LONG_SECONDS)


LEASES = st.builds(Lease, st.sampled_from(TOKENS), st.sampled_from(VERSIONS))
EXPECTED = st.sampled_from([FREE, FREE, ANY]) | LEASES.map(lambda lease: Held(*lease))
STEPS = st.builds(Step, st.integers(0, LOCKS - 1), EXPECTED, LEASES | st.sampled_from([KEEP, None]))
PUTS = st.lists(STEPS, min_size=1, max_size=LOCKS, unique_by=lambda step: step.lock)


class Model:
    def __init__(self) -> None:
        self.there: dict[int, Lease] = {}

    def fits(self, step: Step) -> bool:
        there, expect = self.there.get(step.lock), step.expect
        if there is None:
            return expect in (FREE, ANY)
        if isinstance(expect, Held) and there != step.writes:
            return there.token == expect.token and expect.version in (None, there.version)
        return there == step.writes or expect == ANY

    def put(self, steps: Sequence[Step]) -> tuple[bool, set[int]]:
        """Whether they are made, and of which locks there is a new lease."""
        if not all(map(self.fits, steps)):
            return False, set()
        new = set()
        for lock, expect, writes in steps:
            there = self.there.get(lock)
            if writes is None:
                self.there.pop(lock, None)
            elif isinstance(writes, Lease):
                self.there[lock] = writes
                if there is None or not (there == writes or isinstance(expect, Held)):
                    new.add(lock)
        return True, new


@pytest.fixture
def atomic_store(each_store: BaseStore) -> BaseStore:
    if not each_store.atomic_release:
        pytest.skip("it compares first and writes then")
    return each_store


# kazoo draws from the module random in a thread of its own.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(puts=st.lists(PUTS, max_size=8))
def test_any_changes(atomic_store: BaseStore, puts: list[list[Step]]) -> None:
    store, model, names = atomic_store, Model(), [new_name() for _ in range(LOCKS)]
    fences = dict.fromkeys(range(LOCKS), 0)
    for put in puts:
        # Given changes of some locks, I expect them to be made or not as a dict would
        steps = put if store.puts_together else put[:1]
        done = store.put([step.change(names) for step in steps])
        made, new = model.put(steps)
        assert done.made == made

        # And that to be there which a dict would have
        found = store.get(names)
        assert lease_in(found) == [model.there.get(lock) for lock in range(LOCKS)]
        assert lease_in(done.entries) == [model.there.get(step.lock) for step in steps]

        # And the fence of a lock to grow with each new lease of it, and with nothing else
        for lock, entry in enumerate(found):
            if entry is not None and store.supports_fence:
                assert entry.fence is not None
                grown = entry.fence > fences[lock]
                assert grown if lock in new else entry.fence == fences[lock]
                fences[lock] = entry.fence


def lease_in(entries: Sequence[Entry | None]) -> list[Lease | None]:
    records = [None if entry is None else entry.record for entry in entries]
    return [each and Lease(each["token"], each.get("version")) for each in records]  # type: ignore[misc]


OLD, LEAST, NEW = 5, 7, 9
A: Record = {"token": TOKENS[0], "at": 1.0}
A_LATER: Record = {**A, "version": "v" * 22}
B: Record = {"token": TOKENS[1], "at": 1.0}
A_LEASE = Entry("name", A, 20.0, OLD, began=3.0)
OTHER_CODES = Entry("name", None, 20.0, digest="d")
EXPECTS: list[str | Held | Foreign] = [
    FREE, ANY, Held(TOKENS[0]), Held(TOKENS[0], "v" * 22), Held(TOKENS[1]), Foreign("d"),
    Foreign("e"),
]  # fmt: skip
RECORDS: list[Record | str | None] = [A, A_LATER, B, KEEP, None]
THERE = [None, A_LEASE, A_LEASE._replace(record=A_LATER), OTHER_CODES]


class TestAfter:
    """What is there after each kind of change that fits what was there."""

    def test_nothing_if_it_removes(self) -> None:
        for expect, there in product(EXPECTS, THERE):
            assert after(Change("name", expect, None), there, NEW) is None

    def test_the_same_if_it_keeps_but_for_the_ttl_of_a_lease(self) -> None:
        for expect, there in product(EXPECTS, THERE):
            assert after(Change("name", expect, KEEP), there, NEW, LEAST) is there
            kept = after(Change("name", expect, KEEP, LONG_SECONDS), there, NEW, LEAST)
            is_lease = there is not None and there.record is not None
            assert kept == (there._replace(left=LONG_SECONDS) if is_lease and there else there)

    @pytest.mark.parametrize("ttl", [LONG_SECONDS, None])
    def test_its_record_if_it_writes_one(self, ttl: float | None) -> None:
        fitting = 0
        for expect, record, there in product(EXPECTS, (A, A_LATER, B), THERE):
            change = Change("name", expect, record, ttl)
            if not fits(change, there):
                continue
            entry = after(change, there, NEW)
            assert entry is not None
            assert (entry.name, entry.record, entry.left) == ("name", record, ttl)
            assert entry.digest is None
            is_same = there is not None and (isinstance(expect, Held) or there.record == record)
            assert (entry.fence, entry.began) == ((OLD, 3.0) if is_same else (NEW, None))
            fitting += 1
        assert fitting == 36

    def test_the_fence_of_what_is_written_is_at_least_the_number_that_is_asked_for(self) -> None:
        same, new = Change("name", FREE, A, 1.0), Change("name", ANY, B, 1.0)
        for least, fences in ((0, (OLD, NEW)), (LEAST, (LEAST, NEW)), (NEW + 1, (NEW + 1,) * 2)):
            entries = [after(change, A_LEASE, NEW, least) for change in (same, new)]
            assert tuple(entry and entry.fence for entry in entries) == fences

    def test_without_fences_there_is_none(self) -> None:
        for there in (None, A_LEASE._replace(fence=None), OTHER_CODES):
            entry = after(Change("name", ANY, B, 1.0), there, None, LEAST)
            assert entry is not None
            assert entry.fence is None
