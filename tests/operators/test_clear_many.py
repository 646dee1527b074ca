"""Hundreds of locks are cleared together, each only while it is held as it was seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache
from redis import Redis

from django_tasklock import LockInfo, StoreUnavailable, locks
from django_tasklock.operators.clearing import Outcome, Seen, clear_all_seen, token_digest
from django_tasklock.signals import lock_cleared
from django_tasklock.stores import stores
from django_tasklock.stores.redis.many_at_once import CLEAR_MANY
from tests.admin.test_admin import scripts_run
from tests.conftest import UseRedis
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import LONG, holder, taken

NAMES = [f"video:{number}" for number in range(300)]


@pytest.fixture
def cleared() -> Iterator[list[dict[str, Any]]]:
    """What the signal says."""
    heard: list[dict[str, Any]] = []

    def hear(**said: Any) -> None:
        heard.append(said)

    lock_cleared.connect(hear)
    yield heard
    lock_cleared.disconnect(hear)


def seen_now(*names: str) -> list[Seen]:
    return [Seen(name, holder(name).token, holder(name).digest) for name in names]


def shown(*names: str) -> list[LockInfo]:
    return [info for info in stores["default"].get_many(names) if info is not None]


def test_hundreds_take_one_round_trip_to_look_and_one_to_clear(
    use_redis: UseRedis, own_redis_server: RedisServer, cleared: list[dict[str, Any]]
) -> None:
    # The history is one script more, at any time.
    use_redis(own_redis_server.url, {"OPTIONS": {"HISTORY": 0}})
    leases = [taken(name) for name in NAMES]
    seen = [Seen(lease.name, None, token_digest(lease.token)) for lease in leases]
    # The server learns the scripts.
    taken("first")
    clear_all_seen(locks, seen_now("first"), by="a test")
    cleared.clear()

    before = scripts_run(own_redis_server)
    done = clear_all_seen(locks, seen, by="a test")

    assert scripts_run(own_redis_server) == before + 2
    assert {each.outcome for each in done} == {Outcome.CLEARED}
    assert locks.count() == 0
    assert [said["name"] for said in cleared] == NAMES
    assert {said["by"] for said in cleared} == {"a test"}
    assert [said["token"] for said in cleared] == [lease.token for lease in leases]


def test_each_clear_is_an_event_also_of_more_than_the_queue_of_events_holds(
    use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_tasklock._engine.history.MOST_QUEUED", 300)
    use_redis()
    for _ in range(3):
        for name in NAMES:
            taken(name)
        clear_all_seen(locks, seen_now(*NAMES), by="a test")
    events = locks.history(limit=2000)
    assert sum(event.kind == "cleared" and event.by == "a test" for event in events) == 900


def test_each_has_an_outcome_of_its_own(use_redis: UseRedis) -> None:
    use_redis()
    kept, ended, changed = taken("kept"), taken("ended"), taken("changed")
    seen = seen_now("kept", "ended", "changed")
    ended.release()
    changed.release()
    successor = taken("changed")
    done = clear_all_seen(locks, [*seen, Seen("never")], by="a test")
    assert [(each.name, each.outcome) for each in done] == [
        ("kept", Outcome.CLEARED), ("ended", Outcome.NOT_LOCKED),
        ("changed", Outcome.CHANGED_HANDS), ("never", Outcome.NOT_LOCKED),
    ]  # fmt: skip
    assert not kept.extend()
    assert successor.extend()


def test_what_happens_between_the_look_and_the_clear_counts(use_redis: UseRedis) -> None:
    use_redis()
    changed, ended, detached = taken("changed"), taken("ended"), taken("detached")

    def meanwhile(_holders: object) -> None:
        changed.release()
        taken("changed")
        ended.release()
        detached.detach()

    seen = seen_now("changed", "ended", "detached")
    done = clear_all_seen(locks, seen, by="a test", before=meanwhile)

    assert [each.outcome for each in done] == [
        Outcome.CHANGED_HANDS, Outcome.NOT_LOCKED, Outcome.CLEARED,
    ]  # fmt: skip
    assert locks.is_locked("changed")
    assert not locks.is_locked("detached")


def test_foreign_key_goes_only_with_the_value_that_was_shown(use_redis: UseRedis) -> None:
    use_redis()
    for name in ("same", "other"):
        cache.set(f"lock:{name}", "theirs", LONG)
    seen = seen_now("same", "other")

    def meanwhile(_holders: object) -> None:
        cache.set("lock:other", "theirs, anew", LONG)

    done = clear_all_seen(locks, seen, by="a test", before=meanwhile)

    assert [each.outcome for each in done] == [Outcome.CLEARED, Outcome.CHANGED_HANDS]
    assert cache.get("lock:same") is None
    assert cache.get("lock:other") == "theirs, anew"


def test_queue_of_a_wrong_type_keeps_no_lock_from_being_cleared(use_redis: UseRedis) -> None:
    use_redis()
    store: Any = stores["default"]
    for name in NAMES[:5]:
        taken(name)
    infos = shown(*NAMES[:5])
    store.client.redis.set(store.key(NAMES[3]) + " queue", "a stranger's")
    assert store.clear_many(infos) == [True] * 5
    assert locks.count() == 0


def test_lost_reply_is_an_outage_and_the_clear_is_not_sent_again(
    use_redis: UseRedis, cut_proxy: CutProxy, redis_server: RedisServer
) -> None:
    use_redis(cut_proxy.url)
    for name in NAMES[:3]:
        taken(name)
    infos = shown(*NAMES[:3])
    with Redis.from_url(redis_server.url) as client:
        client.script_load(CLEAR_MANY.text)
    cut_proxy.drop_reply(CLEAR_MANY.sha)
    with pytest.raises(StoreUnavailable):
        stores["default"].clear_many(infos)
    assert cut_proxy.lost_replies == 1
    assert locks.count() == 0


def test_info_that_the_store_has_not_read_is_cleared_by_its_token(use_redis: UseRedis) -> None:
    use_redis()
    lease = taken("video:1")
    info = holder("video:1")
    made = LockInfo("video:1", 1.0, None, info.token, info.owner, "default", info.key)
    assert stores["default"].clear_many([made]) == [True]
    assert not lease.extend()
