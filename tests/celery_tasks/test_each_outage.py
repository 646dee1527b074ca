"""One call of the store fails, at each place of a message's life: its body runs once."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from django_tasklock import locks
from django_tasklock.exceptions import StoreUnavailable
from django_tasklock.stores import stores
from tests.app.models import Job
from tests.celery_tasks.conftest import has_reserved_nothing, job_guard, status
from tests.mailroom import Mailroom
from tests.nights import by_day
from tests.steps import taken
from tests.waiting import until

CALLS = ("acquire", "release", "get", "put")
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "guarded": {"guard": job_guard()},
    "guarded and unique": {"guard": job_guard(), "unique_while": "queued"},
    "guarded, without the lock": {"guard": job_guard(), "on_outage": "run"},
    "unique": {"unique_while": "queued"},
    "unique and coalesced": {"unique_while": "queued", "on_conflict": "coalesce"},
    "waiting": {"on_conflict": "retry"},
    "debounced": {"debounce": 0.001, "debounce_max": 1},
    "cooling": {"lock_cooldown": 0.05},
    "without the lock": {"on_outage": "run", "unique_while": "queued"},
    "beside": {"on_conflict": "run"},
    "handed on": {"lock_max_attempts": 1},
}


def fail_once(store: Any, monkeypatch: pytest.MonkeyPatch, number: int, *, late: bool) -> list[str]:
    """The call with this number fails, before it was carried out, or ``late``: its reply is lost.
    Returns a list that will have its name."""
    made: list[str] = []
    failed: list[str] = []

    def failing(name: str, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            made.append(name)
            if len(made) != number:
                return real(*args, **kwargs)
            failed.append(name)
            if late:
                real(*args, **kwargs)
            raise StoreUnavailable("default", "cut")

        return call

    for name in CALLS:
        monkeypatch.setattr(store, name, failing(name, getattr(store, name)))
    return failed


def is_free(name: str) -> bool:
    return not locks.is_locked(name)


@pytest.mark.parametrize("late", by_day(True, False), ids=["reply lost", "not carried out"])
@pytest.mark.parametrize("redelivered", [False, True], ids=["", "redelivered"])
@pytest.mark.parametrize("kind", OPTIONS)
def test_it_runs_once_and_leaves_nothing(
    room: Mailroom, transactional_db: None, kind: str, redelivered: bool, late: bool
) -> None:
    number, failed = 0, ["at first"]
    while failed:
        # Given a message, and a store whose next call fails at each place of its life
        number += 1
        runs: list[str] = []
        row: Job = Job.objects.create()
        name = f"job:{row.pk}"
        task = room.task(lambda self, job, to=runs: to.append(job), acks_late=True, **OPTIONS[kind])
        task.apply_async((row.pk,), lease=taken(name, ttl=1) if kind == "handed on" else None)
        message = room.take()
        with pytest.MonkeyPatch.context() as monkeypatch:
            failed = fail_once(stores["default"], monkeypatch, number, late=late)
            room.deliver(message, redelivered=redelivered)
        until(partial(is_free, name), "the release")

        # When it was delivered again, I expect its body to have run once, and the row to be done
        room.work_off()
        room.deliver(message, redelivered=True)
        room.work_off()
        assert len(runs) == 1, (number, failed)
        assert "guard" not in OPTIONS[kind] or status(row) == "done"

        # And nothing to be left, neither the lock nor what it had reserved
        until(partial(is_free, name), "the end of its cooling")
        until(partial(has_reserved_nothing, task, name), "the end of what it has reserved")
    assert number > 2
