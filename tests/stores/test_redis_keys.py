"""The names of a store's keys in Redis."""

from __future__ import annotations

import pickle

from django_tasklock import locks
from django_tasklock._values.lock_info import LockKeys, kept_key
from django_tasklock.stores.redis.keys import Keys
from tests.conftest import UseRedis
from tests.steps import LONG
from tests.tenants import current, make_key, tenant


def keys(prefix: str = "lock") -> Keys:
    return Keys(lambda key: f":1:{key}", prefix, "default", prepends=True)


def keys_of_tenants() -> Keys:
    return Keys(lambda key: make_key(key, "site", 1), "lock", "default", prepends=False)


def test_a_lock_has_a_key_and_a_queue_and_shares_the_rest() -> None:
    # Given the keys of a store, with a prefix and without one
    for prefix, start in (("lock", b":1:lock:"), ("", b":1:")):
        made = keys(prefix)

        # I expect a lock to have a key and a wait queue of its own
        lock = made.of("video:1")
        assert lock.key == start + b"video:1"
        assert lock.queue == lock.permits == start + b"video:1 queue"

        # And no note's key to be one of those that all locks share
        shared = made.index, made.listed, made.fences, made.history
        notes = {made.of(f" {what}").key for what in ("index", "listed", "fences", "history")}
        assert len({*shared, *notes}) == 8


def test_the_permits_of_a_name_may_have_one_queue() -> None:
    """A plain lock may have such a name too: its record says which it is."""
    made = keys()
    permit = made.of("report#12")
    assert permit.queue == b":1:lock:report#12 queue"
    assert permit.permits == b":1:lock:report queue" == made.of("report").queue
    assert made.of_question([permit], 12)[2] == permit.permits
    assert made.of_question([permit], None)[2] == permit.queue


def test_names_are_found_in_the_index_and_nothing_else_is() -> None:
    for made in (keys(), keys_of_tenants()):
        for name in ("video:1", "é#1", " queued a b"):
            found = made.name_of(made.of(name).member)
            assert found == name
            assert made.of(name).key == made.of(found or "").key
        for member in (b"", b"\xff", b"two words", b"x" * 500, b"x\n"):
            assert made.name_of(member) is None


def test_keys_are_made_once() -> None:
    for made in (keys(), keys_of_tenants()):
        lock = made.of("report#1")
        assert made.of(lock) is lock


def test_a_handle_names_no_key_where_all_threads_have_the_same() -> None:
    said = LockKeys("video:1", "default", b"somebody's", of_all=False)
    assert keys().of(said).key == keys().of("video:1").key
    assert keys_of_tenants().of(said).key == b"somebody's"


def test_only_keys_that_depend_on_the_thread_leave_the_process() -> None:
    plain, of_tenant = keys().of("report#1"), keys_of_tenants().of("report#1")
    assert type(pickle.loads(pickle.dumps(plain))) is str
    there = pickle.loads(pickle.dumps(of_tenant))
    assert (there, there.key, there.permits) == (of_tenant, of_tenant.key, of_tenant.permits)
    assert (kept_key(plain), kept_key(there)) == (None, "public:site:1:lock:report#1")


def test_permits_have_one_queue_whatever_the_function_for_keys_makes() -> None:
    made = Keys(lambda key: f"digest-{len(key)}", "lock", "default", prepends=False)
    first, second = made.of("report#1"), made.of("report#2")
    of_a_handle = made.of(LockKeys("report#1", "default", first.key, of_all=False))
    assert first.permits == second.permits == of_a_handle.permits == made.of("report").queue


def test_a_permit_keeps_the_queue_of_its_tenant_wherever_that_is_in_the_key() -> None:
    for key_of in ("{tenant}:{key}", "{key}:{tenant}"):

        def make(key: str, key_of: str = key_of) -> str:
            return key_of.format(tenant=current(), key=key)

        made = Keys(make, "lock", "default", prepends=False)
        with tenant("blue"):
            permit, queue = made.of("report#1"), made.of("report").queue
        for name in (permit, LockKeys("report#1", "default", permit.key, of_all=False)):
            assert made.of(name).permits == queue


def test_names_are_plain_for_other_code(use_redis: UseRedis) -> None:
    """PyYAML, for one, takes no subclass of str."""
    use_redis()
    lease = locks.acquire("report", ttl=LONG)
    assert lease is not None
    assert locks.acquire("report") is None
    (event,), (info,), found = locks.history("report"), locks.list(), locks.get("report")
    assert found is not None
    assert {type(each.name) for each in (lease, info, found, event)} == {str}
    lease.release()
