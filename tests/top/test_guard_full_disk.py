"""A guard whose database has no room for its UPDATE: the task fails, and the next run goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from celery.exceptions import Reject
from django.db import OperationalError, connections, models
from django.test.utils import override_settings
from psycopg.errors import DiskFull

from django_tasklock import locks
from django_tasklock.guards import StatusGuard
from tests.app.models import Job
from tests.celery_tasks.test_locked_task import MakeTask, on_redis, task

__all__ = ["on_redis", "task"]

GUARD = StatusGuard(
    Job, pk="video", source="queued", to="working", done="done", failed="failed",
    fence_field="lock_fence",
)  # fmt: skip


class JobsOnPostgres:
    def db_for_read(self, model: type[models.Model], **hints: Any) -> str | None:
        return "postgres" if model is Job else None

    db_for_write = db_for_read


@pytest.fixture
def row(postgres_alias: str) -> Iterator[Job]:
    with connections[postgres_alias].schema_editor() as editor:
        editor.create_model(Job)
    try:
        with override_settings(DATABASE_ROUTERS=[f"{__name__}.JobsOnPostgres"]):
            yield Job.objects.create()
    finally:
        with connections[postgres_alias].schema_editor() as editor:
            editor.delete_model(Job)


def no_room_for(status: str) -> AbstractContextManager[None]:
    """PostgreSQL refuses to give a row this status, as on a full disk."""

    def run(statement: str) -> None:
        with connections["postgres"].cursor() as cursor:
            cursor.execute(statement)

    @contextlib.contextmanager
    def no_room() -> Iterator[None]:
        run(
            f"""CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN
            IF NEW.status = '{status}' THEN RAISE EXCEPTION 'No space left on device'
            USING ERRCODE = 'disk_full'; END IF;
            RETURN NEW; END $$ LANGUAGE plpgsql"""
        )
        run("CREATE TRIGGER refuse BEFORE UPDATE ON app_job FOR EACH ROW EXECUTE FUNCTION refuse()")
        try:
            yield
        finally:
            run("DROP FUNCTION refuse CASCADE")

    return no_room()


def working(task: MakeTask, ran: list[int]) -> Any:
    """A task that notes its runs."""

    def work(self: Any, video: int) -> None:
        ran.append(video)

    return task(work, guard=GUARD)


def status(row: Job) -> str:
    row.refresh_from_db()
    return row.status


def test_a_claim_that_is_refused_leaves_the_row_to_the_next_run(task: MakeTask, row: Job) -> None:
    ran: list[int] = []
    work = working(task, ran)
    with no_room_for("working"), pytest.raises(OperationalError) as raised:
        work(row.pk)
    assert isinstance(raised.value.__cause__, DiskFull)
    assert (status(row), ran, locks.is_locked(f"video:{row.pk}")) == ("queued", [], False)
    work(row.pk)
    assert (status(row), ran) == ("done", [row.pk])


def test_a_finish_that_is_refused_leaves_the_row_claimed_and_the_next_run_claims_it(
    task: MakeTask, row: Job
) -> None:
    ran: list[int] = []
    work = working(task, ran)
    with no_room_for("done"), pytest.raises(OperationalError):
        work(row.pk)
    assert (status(row), locks.is_locked(f"video:{row.pk}")) == ("working", False)
    work(row.pk)
    assert (status(row), ran) == ("done", [row.pk, row.pk])


@pytest.mark.parametrize(
    ("error", "refused"),
    [(LookupError("no such file"), "failed"), (Reject(requeue=True), "queued")],
)
def test_what_the_body_raises_is_told_though_its_row_could_not_be_marked(
    task: MakeTask, row: Job, error: Exception, refused: str
) -> None:
    def fail(self: Any, video: int) -> None:
        raise error

    with no_room_for(refused), pytest.raises(type(error)):
        task(fail, guard=GUARD)(row.pk)
    assert (status(row), locks.is_locked(f"video:{row.pk}")) == ("working", False)
    working(task, [])(row.pk)
    assert status(row) == "done"
