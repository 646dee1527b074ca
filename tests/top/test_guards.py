"""StatusGuard: two conditional UPDATEs say whether there is still work, and whose it was."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.db import connections, models, transaction
from django.db.models import Q
from django.test.utils import CaptureQueriesContext, isolate_apps

from django_tasklock import InvalidLockConfig, StatusConflict
from django_tasklock.guards import NO_LEASE, StatusGuard
from tests.app.models import Job
from tests.jobs import jobs_on
from tests.steps import Meanwhile
from tests.waiting import until

HAS_RESULT = Q(result_file__isnull=False)


def guard(model: Any = "app.Job", **options: Any) -> StatusGuard:
    own: dict[str, Any] = {
        "source": ["queued", "again"], "to": "working", "done": "done", "failed": "failed",
        "fence_field": "lock_fence",
    }  # fmt: skip
    return StatusGuard(model, **own | options)


def job(status: str = "queued", fence: int | None = None, **fields: Any) -> Job:
    row: Job = Job.objects.create(status=status, lock_fence=fence, **fields)
    return row


def of(row: Job) -> tuple[str, int | None]:
    row.refresh_from_db()
    return row.status, row.lock_fence


@pytest.mark.django_db
class TestClaim:
    @pytest.mark.parametrize(
        ("status", "claimed"),
        [
            ("queued", True), ("again", True), ("working", True),  # which a dead run has left
            ("done", False), ("failed", False), ("elsewhere", False),
        ],
    )  # fmt: skip
    def test_row_that_waits_for_work_is_claimed(self, status: str, claimed: bool) -> None:
        row, other = job(status), job()
        assert guard().claim(row.pk, 5) is claimed
        assert of(row) == (("working", 5) if claimed else (status, None))
        assert of(other) == ("queued", None)

    def test_row_that_is_not_there_is_no_work(self) -> None:
        assert guard().claim(4711) is guard().claim(None) is False

    @pytest.mark.parametrize(
        ("options", "fields", "claimed"),
        [
            ({"source": "queued"}, {"status": "queued"}, True),
            ({"source": "queued"}, {"status": "again"}, False),
            ({"exclude": HAS_RESULT}, {"result_file": "a.mp4"}, False),
            ({"exclude": HAS_RESULT}, {}, True),
            ({"filter": HAS_RESULT}, {"result_file": "a.mp4"}, True),
            ({"filter": HAS_RESULT}, {}, False),
            # What a dead run left behind does not strand its row
            ({"exclude": HAS_RESULT}, {"status": "working", "result_file": "half.mp4"}, True),
        ],
    )
    def test_source_filter_and_exclude_say_what_is_work(
        self, options: dict[str, Any], fields: dict[str, Any], claimed: bool
    ) -> None:
        assert guard(**options).claim(job(**fields).pk) is claimed

    def test_it_is_one_update(self) -> None:
        row = job()
        with CaptureQueriesContext(connections["default"]) as queries:
            guard(filter=Q(done_count=0)).claim(row.pk, 5)
        assert [query["sql"].split()[0] for query in queries] == ["UPDATE"]

    def test_late_lease_is_refused(self) -> None:
        row = job("working", 5)
        assert guard().claim(row.pk, 4) is False
        # That lease itself may ask twice, and a later one claims it
        assert guard().claim(row.pk, 5) is True
        assert guard().claim(row.pk, 6) is True
        assert of(row) == ("working", 6)

    @pytest.mark.parametrize("options", [{}, {"fence_field": None}])
    def test_without_a_lock_a_row_is_left_to_the_run_that_may_have_it(
        self, options: dict[str, Any]
    ) -> None:
        left, row, later = job("working", 5), job("queued", 5), job()
        one = guard(**options)
        assert [one.claim_alone(each.pk) for each in (left, row, later)] == [False, True, True]
        one.finish(row.pk, NO_LEASE)
        assert (of(left), of(row)[0]) == (("working", 5), "done")
        if one.fence_field:
            assert one.claim(later.pk, 1) is True
            with pytest.raises(StatusConflict):
                one.finish(later.pk, NO_LEASE)
            assert of(later) == ("working", 1)


@pytest.mark.django_db
class TestFinish:
    @pytest.mark.parametrize("fence", [5, None])
    @pytest.mark.parametrize(
        ("verb", "options", "status"),
        [
            ("finish", {}, "done"),
            ("finish", {"source": ["done", "queued"]}, "done"),
            ("fail", {}, "failed"),
            ("fail", {"failed": None}, "queued"),
            ("fail", {"failed": None, "source": ["done", "queued"]}, "queued"),
            ("reopen", {}, "queued"),
            ("reopen", {"source": ["done", "queued"]}, "queued"),
        ],
    )
    def test_row_gets_the_status_of_its_outcome(
        self, verb: str, options: dict[str, Any], status: str, fence: int | None
    ) -> None:
        one, row = guard(**options), job(fence=4)
        assert one.claim(row.pk, fence)
        assert one.is_claimed(row.pk)
        getattr(one, verb)(row.pk, fence)
        assert of(row) == (status, fence or 4)
        assert one.is_done(row.pk) is (status == "done")
        assert one.claim(row.pk, fence) is (status in one.source)

    def test_row_that_somebody_changed_is_a_conflict(self) -> None:
        row = job()
        with pytest.raises(StatusConflict) as conflict:
            guard().finish(row.pk)
        assert (conflict.value.model, conflict.value.pk) == ("app.Job", row.pk)
        assert guard().fail(row.pk) is guard().reopen(row.pk) is False
        assert of(row) == ("queued", None)

    def test_late_writer_is_refused(self) -> None:
        row = job()
        guard().claim(row.pk, 5)
        assert guard().claim(row.pk, 6) is True
        with pytest.raises(StatusConflict):
            guard().finish(row.pk, 5)
        assert guard().fail(row.pk, 5) is guard().reopen(row.pk, 5) is False
        assert of(row) == ("working", 6)


class TestTransactions:
    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("verb", ["claim", "claim_alone", "finish", "fail", "reopen"])
    def test_inside_atomic_it_is_a_clear_error(self, verb: str) -> None:
        row = job("working")
        inside = pytest.raises(RuntimeError, match=r"app\.Job was used inside atomic\(\)")
        with inside, transaction.atomic(), transaction.atomic():
            getattr(guard(), verb)(row.pk)
        assert of(row) == ("working", None)

    @pytest.mark.django_db
    def test_transaction_of_a_test_case_counts_for_nothing(self) -> None:
        row = job()
        assert guard().claim(row.pk)
        with pytest.raises(RuntimeError, match="atomic"), transaction.atomic():
            guard().finish(row.pk)
        guard().finish(row.pk)


class TestPostgres:
    @pytest.fixture(autouse=True)
    def jobs(self, postgres_alias: str) -> Iterator[None]:
        with jobs_on(postgres_alias):
            yield

    @pytest.mark.parametrize("fences", [(6, 7), (7, 6)])
    def test_of_two_who_claim_at_once_one_finishes(
        self, postgres_dsn: str, fences: tuple[int, int]
    ) -> None:
        """Both wait for the row at the same moment, and go on in either order."""
        row, claimed = job(), threading.Barrier(2)

        def work(fence: int) -> bool:
            try:
                mine = guard().claim(row.pk, fence)
                claimed.wait(30)
                if mine:
                    guard().finish(row.pk, fence)
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
        assert [run.result() for run in runs] == [fence == 7 for fence in fences]
        assert of(row) == ("done", 7)

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
        ("model", "options", "says"),
        [
            ("app.Job", {"source": []}, "at least one source"),
            ("app.Job", {"to": "queued"}, "status of its own"),
            ("app.Job", {"failed": "working"}, "another outcome"),
            ("app.Job", {"filter": {"status": "x"}}, "filter is a Q"),
            ("Job", {}, "label"),
            ("nowhere.Job", {}, "nowhere"),
            ("app.Job", {"field": "state"}, "state"),
            (Job, {"fence_field": "fence"}, "fence"),
        ],
    )
    def test_what_cannot_be_meant_is_said(
        self, model: Any, options: dict[str, Any], says: str
    ) -> None:
        with pytest.raises(InvalidLockConfig, match=says):
            guard(model, **options).fence_trouble()

    def test_key_is_taken_from_the_argument_it_names(self) -> None:
        by_name = guard(pk="job_id")
        assert by_name.pk_of({"job_id": 7, "other": 8}) == 7
        with pytest.raises(InvalidLockConfig, match="'job_id'"):
            by_name.pk_of({"other": 8})


class Wide(models.IntegerField):
    def db_type(self, connection: Any) -> str:
        return "bigint"


def test_a_guard_shows_what_was_given() -> None:
    """`locks explain` prints it."""
    assert repr(guard(filter=Q(done_count=0), fence_field="lock_fence")) == (
        "StatusGuard('app.Job', pk='pk', field='status', source=['queued', 'again'], "
        "to='working', done='done', failed='failed', filter=<Q: (AND: ('done_count', 0))>, "
        "fence_field='lock_fence')"
    )


CANNOT_HOLD = r"the fence field app\.Row\d+\.fence cannot hold a fence.*Use BigIntegerField\("


class TestFenceField:
    """A fence is a number of 16 digits."""

    @pytest.mark.parametrize(
        ("field", "says"),
        [
            (models.BigIntegerField(null=True), "^$"),
            (models.DecimalField(null=True, max_digits=20, decimal_places=0), "^$"),
            (Wide(null=True), "^$"),
            (models.BigIntegerField(), "cannot be empty"),
            (models.IntegerField(null=True), CANNOT_HOLD),
            (models.DecimalField(null=True, max_digits=17, decimal_places=2), CANNOT_HOLD),
            (models.ForeignKey(Job, models.CASCADE, null=True), CANNOT_HOLD),
        ],
        ids=repr,
    )
    @isolate_apps("tests.app")
    def test_that_holds_one_is_asked_for(self, field: Any, says: str) -> None:
        fields = {"__module__": "tests.app.models", "status": models.TextField(), "fence": field}
        model: Any = type(f"Row{len(apps.get_app_config('app').models)}", (models.Model,), fields)
        assert re.search(says, guard(model, fence_field="fence").fence_trouble())
