"""A form that only a later version knows excludes, is shown, and is never obeyed. For the length of
a deploy nothing is lost, and no two get in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.conf import settings
from django.core.cache import cache
from django.test.utils import override_settings

from django_tasklock import lock, locks
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore, Note
from tests.conftest import UseRedis
from tests.inside import LARGEST_PID, keep_events_for, owner_record
from tests.mailroom import REDELIVERY, Mailroom, Runs, mailroom
from tests.servers import RedisServer
from tests.steps import LONG, held_by, holder, server, taken

LATER = {"format": 2}


def held_in_a_later_form(name: str = "job:1", ttl: float = LONG) -> None:
    """A lock of a process that has ended, in a form that this version does not know."""
    held_by({**LATER, **owner_record(), "pid": LARGEST_PID}, name, ttl)


@pytest.fixture
def room(use_redis: UseRedis, redis_server: RedisServer) -> Any:
    use_redis()
    taken("in:use").release()
    with mailroom(redis_server.url) as room:
        yield room


def test_a_lease_of_a_later_form_excludes_and_is_shown_and_nobody_takes_it_over(
    each_store: BaseStore, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.id in ("memory", "quorum-of-memory"):
        pytest.skip("no other version writes into this process's memory")
    # Given a lease of a process that is gone, in a form that is not known
    held_in_a_later_form()

    # I expect it to exclude: whether its process has to live for it is not known
    assert locks.acquire("job:1", wait=0.05) is None

    # And to be shown without an owner
    info = holder("job:1")
    assert info.unknown
    assert (info.owner.pid, info.owner.host, info.owner.runs, info.cooling) == (
        None,
        None,
        False,
        False,
    )

    # And an operator to clear it
    assert locks.clear("job:1", info.token) is True
    assert taken("job:1").release()


def test_its_holder_goes_on_with_it(room: Mailroom) -> None:
    """The scripts of this version compare its token alone."""
    with lock("job:1", ttl=LONG) as lease:
        value = json.loads(cache.get("lock:job:1"))
        cache.set("lock:job:1", json.dumps({**value, **LATER}), LONG)
        assert lease.extend(LONG)
        assert holder("job:1").unknown
    assert not locks.is_locked("job:1")


@pytest.mark.parametrize("redelivered", [False, REDELIVERY])
@pytest.mark.parametrize("on_conflict", ["skip", "raise", "coalesce", "join", "replace"])
def test_a_message_that_meets_it_comes_back(
    room: Mailroom, redelivered: bool, on_conflict: str
) -> None:
    """It may be its own run, or an operator's hold."""
    runs = Runs()
    message = room.message(runs, acks_late=True, on_conflict=on_conflict)
    held_in_a_later_form()
    assert room.deliver(message, redelivered=redelivered)[0] == "IGNORED"
    assert room.ids() == [message.id]
    locks.clear("job:1")
    assert room.work_off() == [("SUCCESS", None)]
    assert runs == [message.id]


@pytest.mark.parametrize("later", ["x1 of another kind", "{}"])
def test_a_redelivery_neither_runs_nor_is_dropped_by_a_note_that_is_not_known(
    room: Mailroom, later: str
) -> None:
    # Given a message that a worker of a later version has had
    runs = Runs()
    message = room.message(runs, acks_late=True)
    key = room.received(message).ours.attempts.key
    stores["default"].set_note(Note(key, later, LONG))

    # I expect it to come back to its queue, marked by the broker or not
    for marked in (False, REDELIVERY):
        assert room.deliver(message, redelivered=marked)[0] == "IGNORED"
        assert room.take().id == message.id
    assert not runs

    # And the main process to leave the note as it is, whatever becomes of its child
    assert room.received(message).ours.attempts.died() == 0
    room.received(message).ours.attempts.take_back()
    assert stores["default"].get_note(key) == later

    # And the message to run when the note is over
    stores["default"].set_note(Note(key, "", LONG))
    assert room.deliver(message, redelivered=REDELIVERY)[0] == "SUCCESS"


def test_a_message_whose_handle_is_not_known_waits_for_its_lease(room: Mailroom) -> None:
    # Given a view of a later version, which hands its lease on
    runs = Runs()
    task = room.task(runs, acks_late=True, on_conflict="skip")
    handle = taken("job:1").detach()
    task.apply_async([1], headers={"tasklock": {"lease": f"2{handle[1:]}"}})

    # I expect its message to come back, and not to be skipped for its own lease
    assert room.deliver(room.take())[0] == "IGNORED"
    assert not runs

    # And to run when the lease is over, or in a worker that can read the handle
    locks.clear("job:1")
    assert room.work_off() == [("SUCCESS", None)]


def test_a_message_waits_for_its_own_lease_after_a_change_of_the_serializer(
    room: Mailroom, use_redis: UseRedis
) -> None:
    """All else is read in either form. To adopt compares the lease's version as it was written."""
    # Given a view that has handed its lease on, and a worker with another serializer
    runs = Runs()
    task = room.task(runs, acks_late=True, on_conflict="skip")
    with lock("job:1", ttl=LONG) as lease:
        task.apply_async([1], lease=lease)
    before = settings.CACHES["default"]
    options = before["OPTIONS"] | {"SERIALIZER": "django_redis.serializers.json.JSONSerializer"}
    with override_settings(CACHES={**settings.CACHES, "default": before | {"OPTIONS": options}}):
        # I expect its message to come back, and to run when the lease is over
        assert holder("job:1").detached
        assert room.deliver(room.take())[0] == "IGNORED"
        assert not runs
        assert locks.clear("job:1")
        assert room.work_off() == [("SUCCESS", None)]


def test_events_of_a_later_kind_are_left_out(
    use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_redis()
    keep_events_for(monkeypatch, seconds=0)
    locks.hold("job:1", LONG)
    [event] = locks.history()
    stream = stores["default"].history._keys[0]  # type: ignore[attr-defined]
    for kind in ("seen", "held"):
        text = json.dumps({"kind": kind, "name": "job:2", "owner": {}, **LATER})
        server().xadd(stream, {"at": repr(event.at.timestamp()), "event": text})
    assert {(each.kind, each.name) for each in locks.history()} == {
        ("held", "job:1"),
        ("held", "job:2"),
    }
