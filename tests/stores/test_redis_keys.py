"""The names of a store's keys in Redis."""

from __future__ import annotations

from django_tasklock.stores.redis.keys import Keys
from tests.tenants import current, make_key, tenant


def keys(prefix: str = "lock") -> Keys:
    return Keys(lambda key: f":1:{key}", prefix, "default", prepends=True)


def keys_of_tenants() -> Keys:
    return Keys(lambda key: make_key(key, "site", 1), "lock", "default", prepends=False)


def test_a_lock_has_a_key_and_a_queue_and_shares_the_rest() -> None:
    for prefix, start in (("lock", b":1:lock:"), ("", b":1:")):
        made = keys(prefix)
        assert made.key("video:1") == start + b"video:1"
        assert made.queues("video:1") == (start + b"video:1 queue",) * 2
        shared = made.index, made.listed, made.fences, made.history
        assert len({*shared, *map(made.key, (" index", " listed", " fences", " history"))}) == 8


def test_the_permits_of_a_name_may_have_one_queue() -> None:
    """A plain lock may have such a name too: its record says which it is."""
    own, of_permits = keys().queues("report#12")
    assert (own, of_permits) == (b":1:lock:report#12 queue", b":1:lock:report queue")
    assert keys().queue("report#1", 3) == of_permits == keys().queue("report", None)
    assert keys().queue("report#1", None) == b":1:lock:report#1 queue"


def test_names_are_found_in_the_index_and_nothing_else_is() -> None:
    for made in (keys(), keys_of_tenants()):
        for name in ("video:1", "é#1", " queued a b"):
            found = made.name_of(made.member(name))
            assert found == name
            assert made.key(name) == made.key(found or "")
        for member in (b"", b"\xff", b"two words", b"x" * 500, b"x\n"):
            assert made.name_of(member) is None


def test_permits_have_one_queue_whatever_the_function_for_keys_makes() -> None:
    made = Keys(lambda key: f"digest-{len(key)}", "lock", "default", prepends=False)
    assert made.queues("report#1")[1] == made.queues("report#2")[1] == made.queues("report")[0]


def test_a_permit_keeps_the_queue_of_its_tenant_wherever_that_is_in_the_key() -> None:
    for key_of in ("{tenant}:{key}", "{key}:{tenant}"):

        def make(key: str, key_of: str = key_of) -> str:
            return key_of.format(tenant=current(), key=key)

        made = Keys(make, "lock", "default", prepends=False)
        with tenant("blue"):
            name, queue = made.keyed("report#1"), made.queue("report", None)
        assert made.queues(name)[1] == queue
