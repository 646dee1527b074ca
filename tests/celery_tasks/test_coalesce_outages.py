"""`on_conflict` "coalesce" and "retry": messages that come back not only because of the lock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from django_tasklock import LockNotAcquired, lock, locks
from django_tasklock.celery.followup import follow_up_key
from tests.conftest import UseRedis
from tests.mailroom import Mailroom, Message, elsewhere, mailroom
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.waiting import until


@pytest.fixture
def room(use_redis: UseRedis, redis_server: RedisServer, cut_proxy: CutProxy) -> Iterator[Mailroom]:
    """Locks go through the proxy, messages do not."""
    use_redis(cut_proxy.url)
    with mailroom(redis_server.url) as room:
        yield room


def refused(room: Mailroom, job: int = 1) -> Message:
    """The oldest message, after it has found the lock held and was requeued."""
    message = room.take()
    with lock(f"job:{job}", ttl=60):
        assert elsewhere(room, message)[0] == "IGNORED"
    return room.take(message.id)


def requeued(room: Mailroom, message: Message) -> Message:
    """The message, after it was delivered and requeued."""
    assert room.deliver(message)[0] == "IGNORED"
    return room.take(message.id)


def with_header(message: Message, **ours: Any) -> Message:
    """The message with other entries in the package's own header."""
    return replace(message, headers={**message.headers, "tasklock": {**message.ours, **ours}})


@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
def test_a_call_that_met_an_outage_is_not_left_to_an_earlier_run(
    room: Mailroom, cut_proxy: CutProxy, held: bool
) -> None:
    """That one had started before the call. If the lock is held then, the call follows up."""
    runs: list[str] = []
    task = room.task(lambda self, job: runs.append(self.request.id), on_conflict="coalesce")
    sent = [task.delay(1).id]
    assert room.work_off() == [("SUCCESS", None)]
    sent.append(task.delay(1).id)
    with cut_proxy.away():
        message = requeued(room, room.take())
    if held:
        with lock("job:1", ttl=60):
            assert elsewhere(room, message)[0] == "IGNORED"
        message = room.take()
    assert room.deliver(message) == ("SUCCESS", None)
    assert runs == sent


@pytest.mark.parametrize("waited", [False, True], ids=["new", "follow-up"])
def test_a_lost_reply_to_its_own_note_does_not_stop_a_run(
    room: Mailroom, cut_proxy: CutProxy, waited: bool
) -> None:
    """The note says that a run has started, and none has."""
    runs: list[str] = []
    task = room.task(lambda self, job: runs.append(self.request.id), on_conflict="coalesce")
    sent = task.delay(1).id
    message = refused(room) if waited else room.take()
    cut_proxy.drop_reply(to=b"\r\nstarted\r\n", times=100)
    message = requeued(room, message)
    assert cut_proxy.lost_replies
    cut_proxy.drop_reply(times=0)
    assert runs == []
    assert room.deliver(message) == ("SUCCESS", None)
    assert runs == [sent]


def dying(room: Mailroom, runs: list[str], **options: Any) -> Any:
    """A task whose first run dies; it is a follow-up, of something else under its lock."""

    def work(self: Any, job: Any) -> None:
        runs.append(self.request.id)
        if len(runs) == 1:
            raise SystemExit(1)

    return room.task(work, on_conflict="coalesce", acks_late=True, **options)


def test_a_follow_up_that_was_killed_waits_for_other_work_under_its_lock(room: Mailroom) -> None:
    """It finds "started", which it wrote itself, while an operator or other code has the lock."""
    runs: list[str] = []
    sent = dying(room, runs).delay(1).id
    follow_up = refused(room)
    with pytest.raises(SystemExit):
        room.deliver(follow_up)
    with lock("job:1", ttl=60):
        assert elsewhere(room, follow_up, redelivered=True)[0] == "IGNORED"
    assert room.work_off() == [("SUCCESS", None)]
    assert runs == [sent, sent]


def test_a_follow_up_that_celery_retries_after_its_death_runs(room: Mailroom) -> None:
    """``retry_on_worker_lost`` sends a new message with the headers of the dead one."""
    runs: list[str] = []
    sent = dying(room, runs).delay(1).id
    follow_up = refused(room)
    with pytest.raises(SystemExit):
        room.deliver(follow_up)
    retry = replace(follow_up, headers={**follow_up.headers, "retries": 1})
    assert room.deliver(retry) == ("SUCCESS", None)
    assert runs == [sent, sent]


def test_a_follow_up_that_met_an_outage_and_waits_again_is_done_by_another_run(
    room: Mailroom, cut_proxy: CutProxy
) -> None:
    runs: list[str] = []
    task = room.task(lambda self, job: runs.append(self.request.id), on_conflict="coalesce")
    task.delay(1)
    message = refused(room)
    with cut_proxy.away():
        message = requeued(room, message)
    with lock("job:1", ttl=60):
        assert elsewhere(room, message)[0] == "IGNORED"
    newcomer = task.delay(1).id
    assert room.deliver(room.take(newcomer)) == ("SUCCESS", None)
    ((state, marker),) = room.work_off()
    assert (state, marker["reason"]) == ("SUCCESS", "coalesced")
    assert runs == [newcomer]


def test_an_outage_does_not_use_up_lock_retry_for(room: Mailroom, cut_proxy: CutProxy) -> None:
    """The time counts from the first refusal on: a thousandth of a second here."""
    task = room.task(on_conflict="retry", lock_retry_for=0.001)
    task.delay(1)
    with cut_proxy.away():
        message = requeued(room, room.take())
    with lock("job:1", ttl=60):
        message = requeued(room, message)
        state, error = room.deliver(message)
    assert (state, type(error)) == ("FAILURE", LockNotAcquired)


def test_messages_of_older_versions_are_not_lost(room: Mailroom) -> None:
    """Their headers do not say whether the lock or an outage sent them back."""
    runs: list[str] = []
    task = room.task(lambda self, job: runs.append(self.request.id), on_conflict="coalesce")
    retrying = room.task(on_conflict="retry", lock_name="other:{job}")
    task.delay(1)
    assert room.work_off() == [("SUCCESS", None)]
    sent = task.delay(1).id
    older = with_header(room.take(), tries=3, since=1.0)
    assert room.deliver(older) == ("SUCCESS", None)
    assert runs[1:] == [sent]
    retrying.delay(1)
    older = with_header(room.take(), tries=3, since=1.0)
    with lock("other:1", ttl=60):
        requeued(room, older)
    for refused_since in ("soon", [], [None, 0], [1.0, 0, 0], ["1", "0"]):
        task.delay(1)
        assert room.deliver(with_header(room.take(), refused=refused_since))[0] == "SUCCESS"
    assert len(runs) == 7


@pytest.mark.parametrize("on_outage", ["raise", "run"])
@pytest.mark.parametrize("ignore", [False, True], ids=["result", "no result"])
def test_a_follow_up_that_ended_in_an_outage_is_relied_on_no_longer(
    room: Mailroom, cut_proxy: CutProxy, on_outage: str, ignore: bool
) -> None:
    """The other run still has the lock when the store is back."""
    runs: list[str] = []
    task = room.task(
        lambda self, job: runs.append(self.request.id),
        on_conflict="coalesce", on_outage=on_outage, acks_late=True, ignore_result=ignore,
    )  # fmt: skip
    sent = task.delay(1).id
    with lock("job:1", ttl=60):
        assert elsewhere(room, room.take())[0] == "IGNORED"
        message, store = room.take(), locks.store
        with cut_proxy.away():
            elsewhere(room, message)
        key = follow_up_key(task, "job:1")
        until(lambda: store.get_note(key) != sent, "the end of its note")
        before = len(runs)
        later = task.delay(1).id
        elsewhere(room, room.take())
    room.work_off()
    assert runs[before:] == [later]


def test_what_a_run_that_never_began_may_have_written_does_not_count(
    room: Mailroom, cut_proxy: CutProxy
) -> None:
    """Its word that it has started was written, and the answer was lost."""
    runs: list[str] = []
    task = room.task(
        lambda self, job: runs.append(self.request.id),
        on_conflict="coalesce", on_outage="raise", acks_late=True,
    )  # fmt: skip
    sent = task.delay(1).id
    with lock("job:1", ttl=60):
        assert elsewhere(room, room.take())[0] == "IGNORED"
    follow_up = room.take()
    task.delay(1)
    cut_proxy.drop_reply(to=b"\r\nstarted\r\n", times=100)
    assert room.deliver(room.take())[0] == "FAILURE"
    cut_proxy.drop_reply(times=0)
    until(lambda: not locks.is_locked("job:1"), "the release")
    key = follow_up_key(task, "job:1")
    until(lambda: locks.store.get_note(key) is None, "the end of its note")
    assert room.deliver(follow_up)[0] == "SUCCESS"
    assert runs == [sent]
