"""What a worker's main process uses that Celery and billiard do not document.

Read in Celery 5.7.0 and billiard 4.3.2; the oldest releases that we support (see ``py310-lowest``
in pyproject.toml) have it too.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.concurrency.prefork import TaskPool
from celery.worker import state
from celery.worker.request import Request


class WorkerRequest(Request):
    """Celery's request, with what its own subclasses of it read.

    Celery lets a task name its class (``Task.Request``), and documents a few methods to override.
    For each task it makes a subclass, whose ``execute_using_pool`` and ``on_success`` call no
    ``super()``. The attributes below are private: ``_request_dict`` has the message's headers,
    which are sent on to the pool child.
    """

    _request_dict: dict[str, Any]
    _already_cancelled: bool

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Have a body that leaves by `SystemExit` fail as a dead child does in every pool.

        A pool without children (``celery.concurrency.base.apply_target``) gives ``on_success`` the
        failure, which takes it for a result, and raises `TypeError`: the solo pool's worker ends,
        and its message comes back for ever.
        """
        super().__init_subclass__(**kwargs)
        given = cls.on_success

        def on_success(request: Any, result: Any, **options: Any) -> Any:
            if isinstance(result, ExceptionInfo):
                lost: Any = getattr(result.exception, "exc", result.exception)
                if isinstance(lost.__context__, SystemExit):
                    return request.on_failure(result)
            return given(request, result, **options)

        cls.on_success = on_success  # type: ignore[assignment, method-assign]

    def info(self, safe: bool = False) -> Any:
        """What ``inspect`` shows: of the arguments what the events show too, if they show any.

        Celery shows them as they are, unless ``inspect active`` is asked otherwise. A message that
        waits for its lock is ``scheduled``, and its caller may hide some.
        """
        return super().info(safe=safe or "argsrepr" in self._request_dict)


def active_requests() -> list[Any]:
    """The requests whose runs have begun and not ended (``celery.worker.state``)."""
    return list(state.active_requests)


def is_shutting_down() -> bool:
    """Whether this worker ends (``celery.worker.state``). An exit code, also 0, says so."""
    asked: list[Any] = [state.should_stop, state.should_terminate]
    return any(code is not None and code is not False for code in asked)


def loop_of_children(consumer: Any) -> Any:
    """The event loop of the worker whose ``consumer`` this is; None if it has none, or has another
    pool than one of child processes."""
    return consumer.hub if isinstance(consumer.pool, TaskPool) else None


def replace_dead_children(consumer: Any) -> None:
    """Have billiard's pool look for dead children now (``TaskPool._pool.maintain_pool``).

    By itself it looks every five seconds, or when the pipe of a child was closed, which is before
    the child is really dead.
    """
    with suppress(Exception):
        consumer.pool._pool.maintain_pool()
