"""A database that does not answer, or has no such table, hides nothing but its own rows."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.cache import cache
from django.db import DatabaseError, connections, transaction
from django.db.models import Model
from django.test import Client
from django.test.utils import override_settings

from django_tasklock import locks
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.guards import StatusGuard
from django_tasklock.operators.doctor import diagnose
from django_tasklock.operators.gone_owners import gone_owners
from django_tasklock.operators.lock_state import lock_state
from tests.app.models import Job
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


class JobsOnPostgres:
    """A database without the table."""

    def db_for_read(self, model: type[Model], **hints: Any) -> str | None:
        return "postgres" if model is Job else None

    db_for_write = db_for_read


@pytest.mark.django_db(transaction=True)
@override_settings(DATABASE_ROUTERS=[f"{__name__}.JobsOnPostgres"])
def test_an_error_does_not_end_the_transaction_of_a_request(
    on_redis: None, make_task: MakeTask, postgres_alias: str
) -> None:
    # Given a lock whose owner is gone, and whose row cannot be looked at
    gone = owner_record(make_task("job:{job_id}").name, "id") | {"start": 1}
    locks.store.acquire("job:1", new_token(), 600, gone)

    for look in (diagnose, lock_state, lambda: gone_owners(locks.store)):
        with transaction.atomic(postgres_alias):
            assert list(look())

            # I expect the transaction to go on
            with connections[postgres_alias].cursor() as cursor:
                cursor.execute("SELECT 1")
