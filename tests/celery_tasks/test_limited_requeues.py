"""A soft time limit that comes while a broker does not take a message: the job is not lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import Reject, SoftTimeLimitExceeded

from django_tasklock import RequeueFailed
from django_tasklock.celery import requeue
from tests.mailroom import Mailroom, Message
from tests.proxy import CutProxy
from tests.steps import Meanwhile, taken
from tests.waiting import until

LIMIT_SECONDS = 0.5


@pytest.fixture
def broker(room: Mailroom, cut_proxy: CutProxy) -> CutProxy:
    """What is between the tasks and their broker."""
    room.app.conf.update(broker_write_url=cut_proxy.url, task_publish_retry=False)
    return cut_proxy


@pytest.fixture
def limited() -> Iterator[None]:
    """A time limit, as the worker's main process tells it to a child: by a signal, once."""

    def too_long(*_: Any) -> None:
        raise SoftTimeLimitExceeded

    before = signal.signal(signal.SIGALRM, too_long)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def refused(room: Mailroom, **options: Any) -> tuple[Message, Any]:
    """A message whose lock is held, and the lease that holds it."""
    lease = Meanwhile(lambda: taken("job:1")).result()
    room.task(on_conflict="retry", **options).delay(1)
    return room.take(), lease


def pauses(monkeypatch: pytest.MonkeyPatch, pause: Callable[[], None]) -> None:
    """What happens in the pause before the next try, or before the message is rejected."""
    own = SimpleNamespace(sleep=lambda _seconds: pause(), time=time.time)
    monkeypatch.setattr(requeue, "time", own)


def limit_comes(where: str, broker: CutProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker takes no message until then, and takes them again afterwards."""
    if where == "while it is sent":
        broker.pause()
        signal.setitimer(signal.ITIMER_REAL, LIMIT_SECONDS)
        pauses(monkeypatch, broker.resume)
        return

    def too_long() -> None:
        broker.accept()
        raise SoftTimeLimitExceeded

    broker.refuse()
    broker.cut()
    pauses(monkeypatch, too_long)


WHERE = pytest.mark.parametrize("where", ["in the pause", "while it is sent"])


@WHERE
def test_with_acks_late_the_broker_delivers_it_again(
    room: Mailroom, broker: CutProxy, monkeypatch: pytest.MonkeyPatch, limited: None, where: str
) -> None:
    message, lease = refused(room, acks_late=True)
    limit_comes(where, broker, monkeypatch)
    state, error = room.deliver(message)
    assert (state, type(error)) == ("REJECTED", Reject)
    assert error.requeue
    lease.release()
    assert room.deliver(message, redelivered=True) == ("SUCCESS", "done:1")


@WHERE
def test_without_acks_late_it_is_sent_when_the_broker_is_back(
    room: Mailroom, broker: CutProxy, monkeypatch: pytest.MonkeyPatch, limited: None, where: str
) -> None:
    """The broker does not have it any more. It may get it twice, as after other lost replies."""
    message, lease = refused(room)
    limit_comes(where, broker, monkeypatch)
    assert room.deliver(message)[0] == "IGNORED"
    lease.release()
    until(room.waiting, "the message")
    assert set(room.work_off()) == {("SUCCESS", "done:1")}


def test_a_message_whose_deliveries_are_counted_is_not_rejected_again(
    room: Mailroom, broker: CutProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue with ``x-delivery-limit`` would drop it. What is sent anew counts from the start."""
    message, lease = refused(room, acks_late=True)
    counted = {"x-delivery-count": 5, "x-death": [{"queue": "celery_delayed_0"}]}
    message.headers.update(counted, mine="kept")
    broker.refuse()
    broker.cut()
    pauses(monkeypatch, broker.accept)
    assert room.deliver(message)[0] == "IGNORED"
    (anew,) = room.waiting()
    assert anew.headers["mine"] == "kept"
    assert counted.keys().isdisjoint(anew.headers)
    lease.release()
    assert room.work_off() == [("SUCCESS", "done:1")]


def test_a_counted_message_that_no_try_can_send_is_given_up_with_an_error(room: Mailroom) -> None:
    message, _lease = refused(room, acks_late=True)
    message.headers["x-delivery-count"] = 5
    message.kwargs["other"] = object()
    state, error = room.deliver(message)
    assert (state, type(error)) == ("FAILURE", RequeueFailed)


def test_a_counted_message_of_a_run_that_cannot_go_on_is_sent_anew(
    room: Mailroom, broker: CutProxy
) -> None:
    starts: list[int] = []

    def work(self: Any, job: int) -> str:
        starts.append(self.request.retries)
        if len(starts) > 1:
            return "done"
        broker.refuse()
        broker.cut()
        try:
            raise self.retry(countdown=0)
        finally:
            broker.accept()

    room.task(work, acks_late=True, lock_max_attempts=1).delay(1)
    message = room.take()
    message.headers["x-delivery-count"] = 1
    assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert room.work_off() == [("SUCCESS", "done")]
    assert starts == [0, 0]


def test_a_requeued_message_keeps_its_parent(room: Mailroom) -> None:
    """None too, of a call from outside; and what was said of it when it was sent."""
    for parent in (None, "of-the-caller"):
        message, lease = refused(room)
        hidden = {"argsrepr": "(<hidden>)", "kwargsrepr": "{}"}
        told = {"parent_id": parent, "root_id": parent or message.id, **hidden}
        message.headers.update(told)
        assert room.deliver(message)[0] == "IGNORED"
        anew = room.take()
        assert {name: anew.headers[name] for name in told} == told
        lease.release()


def test_what_cannot_be_sent_from_here_is_delivered_again_too(
    room: Mailroom, broker: CutProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    message, _lease = refused(room, acks_late=True)
    room.app.tasks[message.task].serializer = "unknown"
    limit_comes("in the pause", broker, monkeypatch)
    state, error = room.deliver(message)
    assert (state, type(error)) == ("REJECTED", Reject)
    assert error.requeue


@pytest.mark.parametrize("how", ["retries", "is replaced"])
def test_a_run_that_goes_on_in_another_message_is_repeated(
    room: Mailroom, broker: CutProxy, monkeypatch: pytest.MonkeyPatch, limited: None, how: str
) -> None:
    starts: list[int] = []
    other = room.task(lock_name="other:{job}")

    def work(self: Any, job: int) -> str:
        starts.append(self.request.retries)
        if len(starts) > 1:
            return "done"
        limit_comes("while it is sent", broker, monkeypatch)
        raise self.retry(countdown=0) if how == "retries" else self.replace(other.s(job))

    room.task(work, acks_late=True).delay(1)
    message = room.take()
    state, error = room.deliver(message)
    assert (state, isinstance(error, Reject)) == ("REJECTED", True)
    assert error.requeue
    assert room.deliver(message, redelivered=True) == ("SUCCESS", "done")
    assert starts == [0, 0]
