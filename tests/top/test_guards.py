"""StatusGuard: two conditional UPDATEs say whether there is still work, and whose it was."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.core import checks
from django.db import connections, models, transaction
from django.db.models import Q
from django.test.utils import CaptureQueriesContext, isolate_apps, override_settings

from django_tasklock import InvalidLockConfig, StatusConflict
from django_tasklock.celery import LockedTask
from django_tasklock.celery.task_checks import check_tasks, known_tasks
from django_tasklock.guards import StatusGuard
from django_tasklock.row_updates import RowUpdates
from tests.app.models import Job
from tests.steps import Meanwhile
from tests.waiting import until


def guard(**options: Any) -> StatusGuard:
    defaults: dict[str, Any] = {
        "source": ["queued", "again"],
        "to": "working",
        "done": "done",
        "failed": "failed",
    }
    return StatusGuard("app.Job", **defaults | options)


def job(status: str = "queued", **fields: Any) -> Job:
    row: Job = Job.objects.create(status=status, **fields)
    return row


def status(row: Job) -> str:
    row.refresh_from_db()
    return row.status


@pytest.mark.django_db
class TestClaimAlone:
    """Without the lock."""

    def test_a_row_that_another_run_has_is_left_to_it(self) -> None:
        row = job("working")
        assert guard().claim_alone(row.pk)[0] is False
        assert guard(fence_field="lock_fence").claim_alone(row.pk)[0] is False
        row.refresh_from_db()
        assert (row.status, row.lock_fence) == ("working", None)

    @pytest.mark.parametrize("last", [None, 5])
    def test_the_fence_never_goes_back(
        self, last: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another run comes and goes after the fence was read."""
        row, update = job(lock_fence=last), RowUpdates.update

        def update_late(*args: Any, **options: Any) -> bool:
            Job.objects.filter(pk=row.pk).update(lock_fence=9)
            return update(*args, **options)

        monkeypatch.setattr(RowUpdates, "update", update_late)
        assert guard(fence_field="lock_fence").claim_alone(row.pk)[0] is False
        row.refresh_from_db()
        assert (row.status, row.lock_fence) == ("queued", 9)


@pytest.mark.django_db
class TestClaim:
    @pytest.mark.parametrize("source", ["queued", "again"])
    def test_row_that_waits_for_work_is_claimed(self, source: str) -> None:
        row = job(source)
        assert guard().claim(row.pk) is True
        assert status(row) == "working"

    @pytest.mark.parametrize("other", ["done", "failed", "elsewhere"])
    def test_row_in_another_status_is_no_work(self, other: str) -> None:
        row = job(other)
        assert guard().claim(row.pk) is False
        assert status(row) == other

    def test_row_of_a_dead_run_is_claimed_again(self) -> None:
        row = job("working")
        assert guard().claim(row.pk) is True

    def test_other_rows_are_left_alone(self) -> None:
        row, other = job(), job()
        assert guard().claim(row.pk)
        assert status(other) == "queued"

    def test_row_that_is_not_there_is_no_work(self) -> None:
        assert guard().claim(4711) is False
        assert guard().claim(None) is False

    def test_one_source_may_be_given_as_it_is(self) -> None:
        row = job()
        assert guard(source="queued").claim(row.pk) is True
        assert guard(source="queued").claim(job("again").pk) is False

    def test_filter_and_exclude_say_what_is_work(self) -> None:
        has_result = Q(result_file__isnull=False)
        fresh, finished = job(), job(result_file="a.mp4")
        assert guard(exclude=has_result).claim(finished.pk) is False
        assert guard(filter=has_result).claim(fresh.pk) is False
        assert guard(exclude=has_result).claim(fresh.pk) is True
        assert guard(filter=has_result).claim(finished.pk) is True

    def test_what_a_dead_run_left_behind_does_not_strand_its_row(self) -> None:
        row = job("working", result_file="half.mp4")
        assert guard(exclude=Q(result_file__isnull=False)).claim(row.pk) is True

    def test_it_is_one_update(self) -> None:
        row = job(lock_fence=None)
        with CaptureQueriesContext(connections["default"]) as queries:
            guard(fence_field="lock_fence", filter=Q(done_count=0)).claim(row.pk, 5)
        assert [query["sql"].split()[0] for query in queries] == ["UPDATE"]


@pytest.mark.django_db
class TestFinish:
    def test_finished_row_is_done(self) -> None:
        row = job()
        guard().claim(row.pk)
        assert guard().is_done(row.pk) is False
        guard().finish(row.pk)
        assert status(row) == "done"
        assert guard().is_done(row.pk) is True
        assert guard().claim(row.pk) is False

    def test_row_that_somebody_changed_is_a_conflict(self) -> None:
        row = job("queued")
        with pytest.raises(StatusConflict) as conflict:
            guard().finish(row.pk)
        assert (conflict.value.model, conflict.value.pk) == ("app.Job", row.pk)
        assert status(row) == "queued"

    def test_failed_row_is_failed(self) -> None:
        row = job("working")
        assert guard().fail(row.pk) is True
        assert status(row) == "failed"
        assert guard().fail(row.pk) is False

    def test_without_a_status_for_failures_it_waits_again(self) -> None:
        row = job("working")
        assert guard(failed=None).fail(row.pk) is True
        assert status(row) == "queued"

    def test_row_that_is_done_is_worked_on_again_where_done_is_a_source(self) -> None:
        again = guard(source=["done", "queued"])
        row = job("done")
        assert again.claim(row.pk) is True
        again.finish(row.pk)
        assert status(row) == "done"

    @pytest.mark.parametrize("leave", ["fail", "reopen"])
    def test_row_of_a_run_that_did_not_end_well_is_not_done(self, leave: str) -> None:
        row = job("working")
        assert getattr(guard(source=["done", "queued"], failed=None), leave)(row.pk) is True
        assert status(row) == "queued"

    def test_reopened_row_has_the_first_source_status(self) -> None:
        row = job("working")
        assert guard().reopen(row.pk) is True
        assert status(row) == "queued"
        assert guard().reopen(row.pk) is False

    def test_old_name_of_reopen_works(self) -> None:
        row = job("working")
        assert guard().put_back(row.pk) is True
        assert status(row) == "queued"


@pytest.mark.django_db
class TestFence:
    def guard(self) -> StatusGuard:
        return guard(fence_field="lock_fence")

    def test_claim_writes_the_fence(self) -> None:
        row = job()
        assert self.guard().claim(row.pk, 5) is True
        row.refresh_from_db()
        assert row.lock_fence == 5

    @pytest.mark.parametrize("late", [4, 5])
    def test_late_lease_is_refused(self, late: int) -> None:
        row = job("working", lock_fence=5)
        assert self.guard().claim(row.pk, late) is False

    def test_late_writer_is_refused(self) -> None:
        row = job()
        self.guard().claim(row.pk, 5)
        assert self.guard().claim(row.pk, 6) is True
        with pytest.raises(StatusConflict):
            self.guard().finish(row.pk, 5)
        assert self.guard().fail(row.pk, 5) is False
        assert self.guard().reopen(row.pk, 5) is False
        assert status(row) == "working"
        self.guard().finish(row.pk, 6)
        assert status(row) == "done"

    def test_store_without_fences_is_guarded_by_the_status(self) -> None:
        row = job(lock_fence=5)
        assert self.guard().claim(row.pk, None) is True
        self.guard().finish(row.pk, None)
        assert status(row) == "done"


class TestTransactions:
    VERBS = ("claim", "finish", "fail", "reopen")

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("verb", VERBS)
    def test_inside_atomic_it_is_a_clear_error(self, verb: str) -> None:
        row = job("working")
        for blocks in (1, 2):
            with pytest.raises(RuntimeError, match=r"app\.Job was used inside atomic\(\)"):
                self.inside(blocks, lambda: getattr(guard(), verb)(row.pk))
        assert status(row) == "working"

    def inside(self, blocks: int, call: Any) -> None:
        with transaction.atomic():
            if blocks > 1:
                self.inside(blocks - 1, call)
            else:
                call()

    @pytest.mark.django_db
    def test_transaction_of_a_test_case_counts_for_nothing(self) -> None:
        row = job()
        assert guard().claim(row.pk)
        guard().finish(row.pk)

    @pytest.mark.django_db
    def test_atomic_inside_a_test_case_counts(self) -> None:
        row = job()
        with pytest.raises(RuntimeError, match="atomic"), transaction.atomic():
            guard().claim(row.pk)

    @pytest.mark.django_db(transaction=True)
    def test_it_works_in_what_is_called_on_commit(self) -> None:
        row = job()
        with transaction.atomic():
            transaction.on_commit(lambda: None if guard().claim(row.pk) else pytest.fail("no"))
        assert status(row) == "working"


class JobsOnPostgres:
    """Sends the jobs to PostgreSQL."""

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str | None:
        return "postgres" if model is Job else None

    db_for_write = db_for_read


class TestPostgres:
    @pytest.fixture(autouse=True)
    def jobs(self, postgres_alias: str) -> Iterator[None]:
        with override_settings(DATABASE_ROUTERS=[f"{__name__}.JobsOnPostgres"]):
            with connections[postgres_alias].schema_editor() as editor:
                editor.create_model(Job)
            yield
            with connections[postgres_alias].schema_editor() as editor:
                editor.delete_model(Job)

    @pytest.mark.parametrize("fences", [(6, 7), (7, 6), (7, 7)])
    def test_of_two_who_claim_at_once_one_finishes(
        self, postgres_dsn: str, fences: tuple[int, int]
    ) -> None:
        """Both wait for the row at the same moment, and go on in either order."""
        row, one_guard = job(), guard(fence_field="lock_fence")
        claimed = threading.Barrier(2)

        def work(fence: int) -> bool:
            try:
                mine = one_guard.claim(row.pk, fence)
                claimed.wait(30)
                if mine:
                    one_guard.finish(row.pk, fence)
                return mine
            except StatusConflict:
                return False
            finally:
                connections.close_all()

        with psycopg.connect(postgres_dsn) as busy:
            busy.execute("SELECT 1 FROM app_job WHERE id = %s FOR UPDATE", [row.pk])
            runs = [Meanwhile(lambda fence=fence: work(fence)) for fence in fences]  # type: ignore[misc]
            with psycopg.connect(postgres_dsn, autocommit=True) as looker:
                until(lambda: self.waiting(looker) == 2, "both at the row")
        finished = [run.result() for run in runs]
        assert sum(finished) == 1
        row.refresh_from_db()
        assert (row.status, row.lock_fence) == ("done", 7)
        assert finished[fences.index(7)] or fences == (7, 7)

    def waiting(self, looker: psycopg.Connection[Any]) -> int:
        found = looker.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            " AND query LIKE 'UPDATE%' AND datname = current_database()"
        ).fetchone()
        assert found is not None
        return int(found[0])

    def test_it_writes_where_the_router_says(self) -> None:
        row = job()
        assert row._state.db == "postgres"
        assert guard().claim(row.pk)
        with pytest.raises(RuntimeError), transaction.atomic(using="postgres"):
            guard().finish(row.pk)
        with transaction.atomic():
            guard().finish(row.pk)  # Another database's transaction does not matter.


class TestConfig:
    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"source": []}, "at least one source"),
            ({"to": "queued"}, "a status of its own"),
            ({"done": "working"}, "a status of its own"),
            ({"failed": "working"}, "another outcome"),
            ({"failed": "done"}, "another outcome"),
            ({"filter": {"status": "x"}}, "filter is a Q"),
            ({"exclude": "x"}, "exclude is a Q"),
        ],
    )
    def test_what_cannot_be_meant_is_said_at_once(self, options: dict[str, Any], says: str) -> None:
        with pytest.raises(InvalidLockConfig, match=says):
            guard(**options)

    @pytest.mark.parametrize("model", ["Job", "a.b.c", 7, object, None])
    def test_model_is_a_model_or_its_label(self, model: Any) -> None:
        with pytest.raises(InvalidLockConfig, match="label"):
            StatusGuard(model, source="a", to="b", done="c")

    @pytest.mark.parametrize(
        ("model", "options", "says"),
        [
            ("app.Jub", {}, "Jub"),
            ("nowhere.Job", {}, "nowhere"),
            ("app.Job", {"field": "state"}, "state"),
            ("app.Job", {"fence_field": "fence"}, "fence"),
            (Job, {"field": "state"}, "state"),
        ],
    )
    def test_model_or_field_that_does_not_exist_is_said(
        self, model: Any, options: dict[str, Any], says: str
    ) -> None:
        with pytest.raises(InvalidLockConfig, match=says):
            StatusGuard(model, source="a", to="b", done="c", **options).claim(1)

    def test_key_is_taken_from_the_argument_it_names(self) -> None:
        by_name = guard(pk="job_id")
        assert by_name.pk_of({"job_id": 7, "other": 8}) == 7
        with pytest.raises(InvalidLockConfig, match="'job_id'"):
            by_name.pk_of({"other": 8})

    def test_model_may_be_given_as_itself(self) -> None:
        assert StatusGuard(Job, source="a", to="b", done="c").label == "app.Job"
        assert repr(guard()) == (
            "<StatusGuard app.Job.status: ['queued', 'again'] -> working -> done>"
        )


class TestFenceField:
    """A fence is a number of 16 digits."""

    @pytest.fixture
    def trouble(self) -> Iterator[Callable[[models.Field[Any, Any]], str]]:
        """``trouble(field)``: what is wrong with it as the fence field of a model."""
        with isolate_apps("tests.app"):

            def of(field: models.Field[Any, Any]) -> str:
                fields = {"__module__": "tests.app.models", "status": models.TextField()}
                name = f"Row{len(apps.get_app_config('app').models)}"
                model: Any = type(name, (models.Model,), {**fields, "fence": field})
                options: Any = {"source": "queued", "to": "working", "done": "done"}
                return StatusGuard(model, fence_field="fence", **options).fence_trouble()

            yield of

    @pytest.mark.parametrize(
        "field",
        [
            models.BigIntegerField(null=True),
            models.BigIntegerField(default=0),
            models.PositiveBigIntegerField(null=True),
            models.DecimalField(null=True, max_digits=20, decimal_places=0),
        ],
        ids=repr,
    )
    def test_that_holds_one(self, field: Any, trouble: Callable[[Any], str]) -> None:
        assert trouble(field) == ""

    @pytest.mark.parametrize(
        "field",
        [
            models.IntegerField(null=True),
            models.PositiveIntegerField(null=True),
            models.SmallIntegerField(null=True),
            models.DecimalField(null=True, max_digits=17, decimal_places=2),
            models.FloatField(null=True),
            models.CharField(null=True, max_length=20),
            models.ForeignKey(Job, models.CASCADE, null=True),
        ],
        ids=repr,
    )
    def test_that_cannot(self, field: Any, trouble: Callable[[Any], str]) -> None:
        said = trouble(field)
        assert re.search(r"the fence field app\.Row\d+\.fence cannot hold a fence", said)
        assert f"Use BigIntegerField(null=True), not {type(field).__name__}." in said

    def test_that_cannot_be_empty(self, trouble: Callable[[Any], str]) -> None:
        assert "cannot be empty" in trouble(models.BigIntegerField())

    def test_with_a_type_of_its_own(self, trouble: Callable[[Any], str]) -> None:
        class Wide(models.IntegerField):
            def db_type(self, connection: Any) -> str:
                return "bigint"

        assert trouble(Wide(null=True)) == ""

    def test_task_with_a_small_one_is_an_error(self) -> None:
        class Small(LockedTask):
            abstract = True
            name = "tests.small_fence"
            guard = guard(fence_field="done_count")

            def run(self, pk: int) -> None: ...

        try:
            (message,) = [each for each in check_tasks() if "small_fence" in each.msg]
        finally:
            known_tasks.discard(Small)
        assert isinstance(message, checks.Error)
        assert message.id == "django_tasklock.E005"
        assert "app.Job.done_count" in message.msg
