"""A queue without a worker: what was sent is looked at, and delivered by hand, in any order."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import MagicMock

import kombu
import redis
from billiard.einfo import ExceptionInfo
from celery import Celery, _state
from celery.app.trace import build_tracer
from celery.result import denied_join_result

from django_tasklock.celery import LockedTask
from tests.celery_apps import disconnect, forget
from tests.steps import Meanwhile, killed_in_child

ORIGINAL, REDELIVERY = False, True
"""whether the broker has marked the message as redelivered"""


@dataclass(frozen=True)
class Message:
    """One message of the queue, as the broker has it."""

    id: str
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    embed: dict[str, Any]
    headers: dict[str, Any]
    raw: bytes = field(repr=False, compare=False)

    @property
    def ours(self) -> dict[str, Any]:
        """The header of the package's own."""
        ours: dict[str, Any] = self.headers.get("tasklock") or {}
        return ours


class Runs(list[Any]):
    """A task's body, and the ids of its runs. What it does is given for the first run, the second,
    and so on: the last also for all later ones, and by default nothing."""

    def __init__(self, *steps: Any) -> None:
        super().__init__()
        self._steps = steps

    def __call__(self, task: Any, job: Any) -> Any:
        self.append(task.request.id)
        step = self._steps[min(len(self), len(self._steps)) - 1] if self._steps else None
        return step(task, job) if step else None


class Mailroom:
    """An app with a queue of its own on a real broker; its results are kept in this process."""

    def __init__(self, url: str) -> None:
        self.queue = f"mailroom-{secrets.token_hex(6)}"
        self.redis: Any = redis.Redis.from_url(url)
        self.app = Celery(self.queue, broker=url, set_as_current=False, fixups=[])
        self.app.conf.update(task_default_queue=self.queue, result_backend="cache+memory://")
        # Celery gives every app the tasks that other tests' apps share.
        self.app.finalize()
        for name in [name for name in self.app.tasks if not name.startswith("celery.")]:
            self.app.tasks.pop(name)

    @contextlib.contextmanager
    def results_on(self, url: str) -> Iterator[None]:
        """Results are kept on this Redis meanwhile, and nobody listens to them, as in a task:
        an `AsyncResult` that the garbage collector finds later would connect to unsubscribe."""
        self.app.conf.update(result_backend=url)
        results: Any = self.app.backend
        results.remove_pending_result = lambda result: result
        try:
            with denied_join_result():
                yield
        finally:
            results.client.connection_pool.disconnect()

    def task(self, work: Any = None, **options: Any) -> Any:
        """A task that locks ``job:{job}``; its body is called with the bound task and the job."""

        def body(self: Any, job: Any, other: Any = None) -> Any:
            return f"done:{job}" if work is None else work(self, job)

        options = {"name": f"task-{secrets.token_hex(4)}", "lock_name": "job:{job}", **options}
        return self.register(body, bind=True, **options)

    def register(self, body: Any, **options: Any) -> Any:
        """A locked task of this app alone."""
        app: Any = self.app
        # acks_late is said, so that the checks do not ask for it.
        usual = {"base": LockedTask, "shared": False, "acks_late": False}
        return app.task(body, **{**usual, **options})

    def message(self, work: Any = None, job: Any = 1, **options: Any) -> Message:
        """The message of one call of such a task, taken out of the queue."""
        self.task(work, **options).delay(job)
        return self.take()

    def waiting(self) -> list[Message]:
        """What is in the queue, the oldest first."""
        return [_parsed(raw) for raw in reversed(self.redis.lrange(self.queue, 0, -1))]

    def ids(self) -> list[str]:
        """The task ids in the queue, the oldest first."""
        return [message.id for message in self.waiting()]

    def take(self, task_id: str | None = None) -> Message:
        """Take the oldest message, or that of a task id, out of the queue."""
        for message in self.waiting():
            if task_id in (None, message.id):
                self.redis.lrem(self.queue, -1, message.raw)
                return message
        raise AssertionError(f"no message {task_id or ''} waits")

    def deliver(
        self, message: Message, *, redelivered: bool = False, exchange: Any = ""
    ) -> tuple[str, Any]:
        """Do what a worker does with a message. Returns the state, and what was returned or
        raised."""
        task = self.app.tasks[message.task]
        request = {
            **message.headers,
            **message.embed,
            "hostname": "mailroom",
            "is_eager": False,
            "delivery_info": {
                "exchange": exchange,
                "routing_key": self.queue,
                "redelivered": redelivered,
            },
        }
        if task.__trace__ is None:
            task.__trace__ = build_tracer(task.name, task, app=self.app)
        traced = task.__trace__(message.id, message.args, message.kwargs, request)
        if traced.info is None:
            return "SUCCESS", traced.retval
        return str(traced.info.state), traced.info.retval

    def deliveries(self, message: Message, *marked: bool) -> list[str]:
        """Deliver a message several times, each time marked as a redelivery or not. Returns the
        states."""
        return [self.deliver(message, redelivered=each)[0] for each in marked]

    def fails(self, message: Message, kind: type[BaseException], **how: Any) -> Any:
        """Deliver a message that is to fail with this kind of error. Returns the error."""
        state, error = self.deliver(message, **how)
        assert (state, type(error)) == ("FAILURE", kind)
        return error

    def request_class(self, task: Any) -> Any:
        """The class that the main process of a worker makes the task's requests of."""
        for _ in range(2):  # Once more when it has connected to the broker again.
            task.start_strategy(self.app, MagicMock())
        return task.Request

    def received(self, message: Message) -> Any:
        """The request that the main process makes of a message, which then has the token that this
        process drew."""
        body = json.dumps([message.args, message.kwargs, message.embed])
        sent = kombu.Message(
            body=body, content_type="application/json", content_encoding="utf-8",
            headers=message.headers,
        )  # fmt: skip
        task = self.app.tasks[message.task]
        request = self.request_class(task)(sent, app=self.app, task=task)
        message.headers["tasklock"] = request.request_dict["tasklock"]
        return request

    def work_off(self, most: int = 50) -> list[tuple[str, Any]]:
        """Deliver what waits until nothing does."""
        outcomes: list[tuple[str, Any]] = []
        while self.waiting():
            assert len(outcomes) < most, "the queue does not get empty"
            outcomes.append(self.deliver(self.take()))
        return outcomes

    def states(self) -> list[str]:
        """The same; returns the states alone."""
        return [state for state, _ in self.work_off()]

    def close(self) -> None:
        """Remove the queue and close the connections."""
        self.redis.delete(self.queue)
        self.redis.close()
        disconnect(self.app)
        forget(self.app)


@contextlib.contextmanager
def mailroom(url: str) -> Iterator[Mailroom]:
    """A mailroom whose app is the current one."""
    room = Mailroom(url)
    room.app.set_current()
    try:
        yield room
    finally:
        nobody: Any = _state
        nobody._set_current_app(None)
        room.close()


def _parsed(raw: bytes) -> Message:
    message = json.loads(raw)
    args, kwargs, embed = json.loads(base64.b64decode(message["body"]))
    headers = message["headers"]
    return Message(headers["id"], headers["task"], args, kwargs, embed, headers, raw)


def elsewhere(room: Mailroom, message: Message, **options: Any) -> tuple[str, Any]:
    """Deliver a message to another worker, while this one is busy."""
    return Meanwhile(lambda: room.deliver(message, **options)).result()


def killed_in_body(room: Mailroom, message: Message, **options: Any) -> None:
    """Deliver a message to a process that is killed in the task's body."""

    def dies() -> None:
        task: Any = room.app.tasks[message.task]
        task.run = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        room.deliver(message, **options)

    killed_in_child(dies)


def ends(request: Any, error: BaseException) -> None:
    """Tell the request, as the pool does, that its run ended with this error."""
    try:
        raise error
    except type(error):
        request.on_failure(ExceptionInfo())


def coalesced(outcome: tuple[str, Any]) -> str:
    """The task id of the message that does the job instead."""
    state, marker = outcome
    assert (state, marker["reason"]) == ("SUCCESS", "coalesced")
    return str(marker["holder"])
