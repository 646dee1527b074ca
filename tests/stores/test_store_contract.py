"""The store contract, held against every store, and against one of three methods; by day a handful
of tests of the stores that few projects have. And changes in any order, on any condition."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.core.cache import cache, caches
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_tasklock import ListingNotSupported, LockNotAcquired, lock, locks
from django_tasklock.conf import StoreSettings
from django_tasklock.stores.base import BaseStore, Grant, Note
from django_tasklock.stores.records import ANY, FREE, KEEP, Change, Done, Entry, Held, Record, after
from django_tasklock.testing.steps import LONG_SECONDS, granted, new_name, refused
from tests.dict_store import DictStore
from tests.inside import new_token
from tests.pages import DOCS, blocks
from tests.steps import LONG, holder, taken
from tests.stores.contract import WholeContract
from tests.stores.contract.verbs import assert_a_child_and_its_parent_go_on
from tests.waiting import until

NAME = "video:123"
SHORT = 1.0


class TestOtherStores:
    def test_one_holds_the_lock_and_others_are_refused_until_its_lease_ends(
        self, other_store: BaseStore
    ) -> None:
        # Given who holds a lock, I expect others to be refused
        lease = taken(NAME, ttl=SHORT)
        assert holder(NAME).token == lease.token
        with pytest.raises(LockNotAcquired), lock(NAME):
            raise AssertionError

        # And the lock to be free at the end of the lease
        until(lambda: not locks.is_locked(NAME), "the end of the lease")

        # And its first holder to change nothing of the next lease
        later = taken(NAME)
        assert lease.release() is False
        assert later.fence is None or later.fence > (lease.fence or 0)
        assert later.extend(2 * LONG)
        assert holder(NAME).token == later.token
        assert LONG < (holder(NAME).ttl or 0) <= 2 * LONG
        assert later.release()
        assert not locks.is_locked(NAME)

    def test_locks_are_listed_and_cleared_as_they_were_seen(self, other_store: BaseStore) -> None:
        held = {name: taken(name).token for name in (NAME, "video:2", "report")}
        try:
            assert {info.name for info in locks.list("video:")} == {NAME, "video:2"}
            assert locks.count() == len(held)
        except ListingNotSupported:
            assert {name for name in held if locks.is_locked(name)} == set(held)
        assert locks.clear(NAME, token=held["video:2"]) is False
        assert locks.clear(NAME, token=held[NAME]) is True
        assert not locks.is_locked(NAME)
        assert locks.is_locked("video:2")
        assert taken(NAME).release()

    def test_a_note_keeps_a_key(self, other_store: BaseStore) -> None:
        other_store.set_note(Note("key", "text", LONG))
        assert other_store.reserve("key", "other", LONG) == "text"

    @pytest.mark.usefixtures("each_fork")
    def test_a_forked_child_and_its_parent_both_go_on(self, other_store: BaseStore) -> None:
        assert_a_child_and_its_parent_go_on(other_store)


class TestEveryStore(WholeContract):
    @pytest.fixture(autouse=True)
    def _every_store(self, each_store: BaseStore) -> Iterator[None]:
        self.store = each_store
        yield
        del self.store  # pytest keeps this object, and with it the threads of the store's client.

    def make_store(self) -> BaseStore:
        return self.store

    def make_silent_store(self) -> BaseStore | None:
        settings = self.store.settings
        if "HOSTS" in settings.options:
            changed = replace(settings, options={"HOSTS": "127.0.0.1:1", "TIMEOUT": 0.2})
        elif "LOCATION" in settings.options:
            options = {"LOCATION": "redis://127.0.0.1:1", "SOCKET_TIMEOUT": 0.2}
            changed = replace(settings, options=options)
        elif self.store.uses_cache and "silent" in caches.settings:
            changed = replace(settings, cache="silent")
        else:
            return None
        return type(self.store)(changed)


@pytest.fixture
def key(cache_store: BaseStore) -> str:
    """What the cache calls the lock."""
    prefix = cache_store.settings.key_prefix
    return f"{prefix}:{NAME}" if prefix else NAME


def test_the_key_is_the_caches_own(cache_store: BaseStore, key: str) -> None:
    """The cache itself finds the lock under ``KEY_PREFIX:name``, and cannot add to it."""
    token = granted(cache_store, NAME).token
    assert holder(NAME).key == cache.make_key(key)
    assert token in str(cache.get(key))
    assert cache.add(key, "somebody's", LONG) is False
    assert cache.delete(key) is True
    assert cache_store.find(NAME) is None


@pytest.mark.parametrize("value", ["locked", 1, True, {"token": 5}, [1], b"\xff", "", None])
def test_a_key_that_somebody_else_set_is_a_lock_too(
    cache_store: BaseStore, key: str, value: Any
) -> None:
    """None: a key that never expires."""
    value, lasts = ("for ever", None) if value is None else (value, LONG)
    try:
        assert cache.add(key, value, lasts) is True
    except TypeError:
        pytest.skip("this serializer cannot carry the value")
    held = holder(NAME)
    assert (held.token, held.acquired_at, held.fence) == (None, None, None)
    assert lasts or held.ttl is None
    assert set(held.owner.as_dict().values()) == {None}
    assert refused(cache_store, NAME).token is None
    assert cache_store.release(NAME, new_token()) is False
    assert cache_store.extend(NAME, new_token(), LONG_SECONDS) is False
    assert cache_store.clear(NAME, new_token()) is False
    assert cache_store.clear(NAME, digest="0" * 32) is False
    assert cache.get(key) == value
    assert cache_store.clear(NAME) is True
    assert cache.get(key) is None
    granted(cache_store, NAME)


SETTINGS = StoreSettings(alias="default")


def test_the_docs_show_a_store_of_three_methods_and_a_missing_one_is_named() -> None:
    # Given the page for authors of stores, I expect its code to be this store
    shown = blocks(DOCS / "howto/store-of-your-own.md", "python")[0].text
    text = Path(inspect.getfile(DictStore)).read_text()
    code = text.partition("import threading")[2].strip()
    assert shown.partition("import threading")[2].strip() == code
    with pytest.raises(TypeError, match=r"get.*put"):
        BaseStore(SETTINGS)  # type: ignore[abstract]


class TestDictStore(WholeContract):
    def make_store(self) -> BaseStore:
        return DictStore(SETTINGS)


class InSteps(DictStore):
    """It cannot list, and makes its changes one after the other."""

    puts_together = False
    supports_listing = False
    list = BaseStore.list


class TestInSteps(WholeContract):
    def make_store(self) -> BaseStore:
        return InSteps(SETTINGS)


def test_a_note_is_written_before_the_release_which_may_let_a_redelivery_in() -> None:
    class Watched(InSteps):
        seen: str | None = None

        def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
            if changes[0].name == "video:1" and changes[0].record is None:
                self.seen = self.get_note("run 1")
            return super().put(changes, least_fence)

    store, token = Watched(SETTINGS), new_token()
    assert isinstance(store.acquire(["video:1"], token, LONG, {}), Grant)
    assert store.release("video:1", token, Note("run 1", "ended", LONG))
    assert store.seen == "ended"


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
        for number, expect, writes in steps:
            there = self.there.get(number)
            if writes is None:
                self.there.pop(number, None)
            elif isinstance(writes, Lease):
                self.there[number] = writes
                if there is None or not (there == writes or isinstance(expect, Held)):
                    new.add(number)
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
        assert lease_in(found) == [model.there.get(number) for number in range(LOCKS)]
        assert lease_in(done.entries) == [model.there.get(step.lock) for step in steps]

        # And the fence of a lock to grow with each new lease of it, and with nothing else
        for number, entry in enumerate(found):
            if entry is not None and store.supports_fence:
                assert entry.fence is not None
                grown = entry.fence > fences[number]
                assert grown if number in new else entry.fence == fences[number]
                fences[number] = entry.fence


def lease_in(entries: Sequence[Entry | None]) -> list[Lease | None]:
    records = [None if entry is None else entry.record for entry in entries]
    return [each and Lease(each["token"], each.get("version")) for each in records]  # type: ignore[misc]


def test_a_ttl_is_given_to_leases_alone() -> None:
    foreign = Entry("name", None, 20.0, digest="d")
    kept = Change("name", ANY, KEEP, LONG_SECONDS)
    assert after(kept, foreign, None) is foreign
    assert after(kept, None, None) is None
