"""What Celery, kombu and billiard do not document and we use, in a worker's main process.

Read in Celery 5.7.0, kombu 5.7.0 and billiard 4.3.2; the oldest releases that we support (see
``py310-lowest`` in pyproject.toml) have it too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery.concurrency.prefork import TaskPool
from celery.worker.request import Request
from kombu.asynchronous import get_event_loop

__all__ = ["WorkerRequest", "event_loop", "hub_of", "keep_reading"]


class WorkerRequest(Request):
    """Celery's request, with a hook for success and with the pool that the task goes to.

    Celery lets a task name its class (``Task.Request``), and documents a few methods to override.
    The attributes below are its private ones that subclasses of this one read.
    """

    _request_dict: dict[str, Any]
    """the message's headers, which are sent on to the pool child"""
    _args: list[Any]
    _kwargs: dict[str, Any]
    _already_cancelled: bool
    """the broker's connection was lost, and the task was ended for it: its message comes back"""
    _already_revoked: bool

    _pool: Any = None

    def succeeded(self) -> None:
        """Called when the task has ended well, before Celery does anything about that."""

    def info(self, safe: bool = False) -> Any:
        """What ``inspect`` shows: of the arguments what the events show too, if they show any.

        Celery shows them as they are, unless ``inspect active`` is asked otherwise. A message that
        waits for its lock is ``scheduled``, and its caller may hide some.
        """
        return super().info(safe=safe or "argsrepr" in self._request_dict)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # Celery makes a subclass for each task, whose versions of these two call no super(). So
        # they are wrapped where that subclass is made.
        super().__init_subclass__(**kwargs)
        execute, succeed = cls.execute_using_pool, cls.on_success

        def execute_using_pool(self: WorkerRequest, pool: Any, **kwargs: Any) -> Any:
            self._pool = pool
            return execute(self, pool, **kwargs)

        def on_success(self: WorkerRequest, failed__retval__runtime: Any, **kwargs: Any) -> Any:
            if not failed__retval__runtime[0]:
                self.succeeded()
            return succeed(self, failed__retval__runtime, **kwargs)

        cls.execute_using_pool = execute_using_pool  # type: ignore[assignment,method-assign]
        cls.on_success = on_success  # type: ignore[assignment,method-assign]

    def runs_in_child(self) -> bool:
        """Whether the task runs in a child process: the other pools give a greenlet's id, or our
        own process's, for its pid."""
        return isinstance(self._pool, TaskPool)

    def replace_dead_children(self) -> None:
        """Have billiard's pool look for dead children now (``TaskPool._pool.maintain_pool``).

        By itself it looks every five seconds, or when the pipe of a child was closed, which is
        before the child is really dead.
        """
        pool = getattr(self._pool, "_pool", None)
        if pool is not None:
            with suppress(Exception):
                pool.maintain_pool()


def event_loop() -> Any:
    """The event loop of this worker; None where it has none."""
    return get_event_loop()


def hub_of(consumer: Any) -> Any:
    """The event loop of the worker that sends ``worker_ready``; None where it has none."""
    return consumer.hub


def keep_reading(
    loop: Any, file: int, read: Callable[..., object], argument: object, again: Callable[[], object]
) -> None:
    """Have ``loop`` call ``read(argument)`` when there is something to read from ``file``.

    When the connection to the broker is lost, the loop forgets all its files (``readers``). So it
    also calls ``again`` at each turn (``on_tick``), which is to call this function again.
    """
    if file not in loop.readers:
        loop.add_reader(file, read, argument)
        loop.on_tick.add(again)
