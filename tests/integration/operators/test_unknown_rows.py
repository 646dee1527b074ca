"""A database that does not answer, or has no such table, hides nothing but its own rows."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.cache import cache
from django.db import DatabaseError
from django.test import Client

from django_tasklock.guards import StatusGuard
from django_tasklock.operators.doctor import diagnose
from django_tasklock.operators.lock_state import lock_state
from tests.integration.admin.test_admin import on_redis
from tests.integration.admin.test_admin_guarded import MakeTask, make_task
from tests.steps import silent

__all__ = ["make_task", "on_redis"]

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning"),
]


@pytest.fixture
def no_rows(on_redis: None, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    make_task("job:{job_id}")

    def rows(self: StatusGuard) -> Any:
        raise DatabaseError("the server has gone away")

    monkeypatch.setattr(StatusGuard, "rows", rows)


def test_the_doctor_says_so_and_goes_on(no_rows: None) -> None:
    cache.set("lock:endless", "a", None)
    found = {problem.kind: str(problem) for problem in diagnose()}
    assert {"unknown", "no ttl"} <= set(found)
    assert "the server has gone away" in found["unknown"]


def test_the_page_says_so(no_rows: None, admin_client: Client) -> None:
    answer = admin_client.get("/admin/django_tasklock/lock/health/")
    assert answer.status_code == 200
    assert "the server has gone away" in answer.content.decode()


def test_the_metrics_of_the_stores_are_there(no_rows: None) -> None:
    values = {gauge.name: gauge.values for gauge in lock_state()}
    assert values["tasklock_store_up"] == [({"store": "default"}, 1)]
    assert values["tasklock_lost_rows"] == []


def test_a_silent_store_is_asked_once_for_all_of_its_own(
    on_redis: None, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the look for deadlocks, which is about all stores."""
    make_task("job:{job_id}")
    verbs = ("count", "list", "scan", "get", "check", "reservations", "held", "walk")
    asked = silent(monkeypatch, *verbs)
    found = [problem for problem in diagnose() if "silent" in str(problem)]
    assert len(found) == 1
    assert len(asked) <= 2
