"""StatusGuard: two conditional UPDATEs say whether there is still work, and whose it was."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.db import connections, models, transaction
from django.db.models import Exists, F, OuterRef, Q
from django.test.utils import CaptureQueriesContext, isolate_apps

from django_tasklock import InvalidLockConfig, StatusConflict
from django_tasklock.guards import mark_of
from tests.app.models import Job
from tests.app.rows import guard, job, of
from tests.jobs import jobs_on
from tests.steps import Meanwhile
from tests.waiting import until

HAS_RESULT = Q(result_file__isnull=False)
AGAIN_AND_AGAIN = {"source": ["done", "queued"]}
MARK, OTHER = mark_of("a message"), mark_of("another")


@pytest.mark.django_db
def test_a_late_run_is_refused_and_the_one_that_has_the_row_finishes_it() -> None:
    # Given a row that waits for work, and the guard that its tasks have
    row, one = job("queued"), guard()

    # I expect a run with the lock to claim it, once more if it asks again, and the next holder too
    assert one.claim(row.pk, fence=5)
    assert one.claim(row.pk, fence=5)
    assert one.claim(row.pk, fence=6)
    assert of(row) == ("working", 6)

    # And the run that was late to be refused, whatever it wants of the row
    with pytest.raises(StatusConflict):
        one.finish(row.pk, fence=5)
    for verb in (one.claim, one.fail, one.reopen):
        assert verb(row.pk, fence=5) is False
    assert of(row) == ("working", 6)

    # And no work to be left when the other one has ended
    one.finish(row.pk, fence=6)
    assert of(row) == ("done", 6)
    assert one.claim(row.pk, fence=7) is False


@pytest.mark.django_db
class TestRow:
    @pytest.mark.parametrize(
        ("options", "fields", "claimed"),
        [
            ({}, {"status": "queued"}, True),
            ({}, {"status": "again"}, True),
            ({"source": "queued"}, {"status": "again"}, False),
            ({}, {"status": "done"}, False),
            ({}, {"status": "failed"}, False),
            ({"exclude": HAS_RESULT}, {"result_file": "a.mp4"}, False),
            ({"exclude": HAS_RESULT}, {}, True),
            ({"filter": HAS_RESULT}, {"result_file": "a.mp4"}, True),
            ({"filter": HAS_RESULT}, {}, False),
            # What a dead run left behind does not strand its row.
            ({"exclude": HAS_RESULT}, {"status": "working", "result_file": "half.mp4"}, True),
        ],
    )
    def test_row_that_waits_for_work_is_claimed_by_one_update(
        self, options: dict[str, Any], fields: dict[str, Any], claimed: bool
    ) -> None:
        row, other = job(**fields), job()
        with CaptureQueriesContext(connections["default"]) as queries:
            assert guard(**options).claim(row.pk, 5) is claimed
        assert [query["sql"].split()[0] for query in queries] == ["UPDATE"]
        assert of(row) == (("working", 5) if claimed else (fields.get("status", "queued"), None))
        assert of(other) == ("queued", None)
        assert guard(**options).claim(4711, 5) is guard(**options).claim(None, 5) is False

    @pytest.mark.parametrize("options", [{}, {"fence_field": None}])
    def test_without_a_lock_a_row_is_left_to_the_run_that_may_have_it(
        self, options: dict[str, Any]
    ) -> None:
        left, row, later = job("working", 5), job("queued", 5), job()
        one = guard(**options)
        rows = left, row, later
        assert [one.claim_alone(each.pk, MARK) for each in rows] == [False, True, True]
        one.finish(row.pk, MARK)
        assert (of(left), of(row)[0]) == (("working", 5), "done")
        # What it works on is left to it as well, until it has ended
        assert one.claim(later.pk, 1) is (one.fence_field is None)
        if one.fence_field:
            assert of(later) == ("working", MARK)
            one.reopen(later.pk, MARK)
            assert one.claim(later.pk, 1) is True

    def test_a_row_of_a_run_without_the_lock_is_its_redeliverys_alone(self) -> None:
        one = guard()
        row, leased = job(), job("working", 4)
        waits, other = job("queued", MARK), job("working", OTHER)
        assert one.claim_alone(row.pk, MARK) is True
        again = [one.claim_again(each.pk, 5, MARK) for each in (row, leased, waits, other)]
        assert again == [True, False, False, False]
        assert [of(row), of(leased), of(other)] == [
            ("working", 5), ("working", 4), ("working", OTHER)
        ]  # fmt: skip
        # The run that was taken for dead does not change it
        with pytest.raises(StatusConflict):
            one.finish(row.pk, MARK)
        assert one.claim_again(row.pk, 6, MARK) is one.claim_again(other.pk, None, OTHER) is False
        assert guard(fence_field=None).claim_again(row.pk, 5, MARK) is False
        assert of(row) == ("working", 5)

    def test_a_mark_is_a_messages_own_and_no_leases_fence(self) -> None:
        marks = {mark_of(each) for each in ("a", "b", "a", "\ud800", None, None)}
        assert (len(marks), max(marks) < 0) == (5, True)

    def test_a_fence_that_no_run_has_written_keeps_nobody_out(self) -> None:
        """A field may have 0 by default."""
        assert [guard().claim(job("working", fence).pk, 5) for fence in (0, None)] == [True, True]

    @pytest.mark.parametrize("fence", [5, None])
    @pytest.mark.parametrize(
        ("verb", "options", "status"),
        [
            ("finish", {}, "done"),
            ("finish", AGAIN_AND_AGAIN, "done"),
            ("fail", {}, "failed"),
            ("fail", {"failed": None}, "queued"),
            ("fail", {"failed": None} | AGAIN_AND_AGAIN, "queued"),
            ("reopen", {}, "queued"),
            ("reopen", AGAIN_AND_AGAIN, "queued"),
        ],
    )
    def test_row_gets_the_status_of_its_outcome(
        self, verb: str, options: dict[str, Any], status: str, fence: int | None
    ) -> None:
        one, row = guard(**options), job(fence=4)
        assert one.claim(row.pk, fence)
        assert one.has(row.pk, one.to)
        getattr(one, verb)(row.pk, fence)
        assert of(row) == (status, fence or 4)
        assert one.has(row.pk, one.done) is (status == "done")
        assert one.claim(row.pk, fence) is (status in one.source)

    def test_row_that_somebody_changed_is_a_conflict(self) -> None:
        row = job()
        with pytest.raises(StatusConflict) as conflict:
            guard().finish(row.pk)
        assert (conflict.value.model, conflict.value.pk) == ("app.Job", row.pk)
        assert guard().fail(row.pk) is guard().reopen(row.pk) is False
        assert of(row) == ("queued", None)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("verb", ["claim", "claim_alone", "finish", "fail", "reopen"])
def test_inside_atomic_it_is_a_clear_error(verb: str) -> None:
    row = job("working")
    inside = pytest.raises(RuntimeError, match=r"app\.Job was used inside atomic\(\)")
    with inside, transaction.atomic(), transaction.atomic():
        getattr(guard(), verb)(row.pk, 5)
    assert of(row) == ("working", None)


WAITING = (
    "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    " AND query LIKE 'UPDATE%' AND datname = current_database()"
)


def at_once(dsn: str, row: Job, *runs: Callable[[], bool]) -> list[bool]:
    """What the runs return, which wait for the row at the same moment and go on in any order."""
    with psycopg.connect(dsn) as busy, psycopg.connect(dsn, autocommit=True) as looker:
        busy.execute("SELECT 1 FROM app_job WHERE id = %s FOR UPDATE", [row.pk])
        begun = [Meanwhile(run) for run in runs]
        until(lambda: looker.execute(WAITING).rowcount == len(runs), "all at the row")
        busy.commit()
        return [run.result() for run in begun]


@pytest.mark.parametrize("fences", [(6, 7), (7, 6)])
def test_of_two_who_claim_at_once_one_finishes(
    postgres_alias: str, postgres_dsn: str, fences: tuple[int, int]
) -> None:
    claimed = threading.Barrier(2)

    def work(fence: int) -> bool:
        mine = guard().claim(row.pk, fence)
        claimed.wait(30)
        with suppress(StatusConflict):
            if mine:
                guard().finish(row.pk, fence)
                return True
        return False

    with jobs_on(postgres_alias):
        row = job()
        done = at_once(postgres_dsn, row, *(partial(work, fence) for fence in fences))
        assert done == [fence == 7 for fence in fences]
        with transaction.atomic():  # That of another database than the row's does not matter.
            assert not guard().claim(row.pk, 8)
        assert of(row) == ("done", 7)


def test_48_of_two_without_the_lock_one_claims_though_its_filter_asks_other_rows(
    postgres_alias: str, postgres_dsn: str
) -> None:
    """In a subquery."""
    wanted = Exists(Job.objects.filter(status="wanted", pk=OuterRef("done_count")))
    one = guard(filter=Q(wanted), exclude=Q(Exists(Job.objects.filter(status="no"))))
    with jobs_on(postgres_alias):
        row = job(done_count=job("wanted").pk)
        assert not one.claim_alone(job().pk, MARK)
        runs = [partial(one.claim_alone, row.pk, mark) for mark in (MARK, OTHER)]
        assert sorted(at_once(postgres_dsn, row, *runs)) == [False, True]


class OfNews(models.Manager[Any]):
    def get_queryset(self) -> Any:
        return super().get_queryset().filter(channel__name="news")


def model_named(called: str, base: Any = models.Model, *, meta: Any = None, **fields: Any) -> Any:
    meta = type("Meta", (), {"app_label": "app", **(meta or {})})
    return type(called, (base,), {"__module__": "tests.app.models", "Meta": meta, **fields})


@isolate_apps("tests.app")
def test_48_a_guard_whose_claim_is_not_one_update_is_refused_and_says_what_to_do() -> None:
    text = models.TextField
    channel = model_named("Channel", name=text())
    to_channel = models.ForeignKey(channel, models.CASCADE, related_name="clips")
    fence = models.BigIntegerField(null=True)
    clip = model_named("Clip", status=text(), lock_fence=fence, channel=to_channel)
    movie = model_named("Movie", clip, state=text())
    proxy = model_named("Proxy", clip, meta={"proxy": True})
    of_child = r"its field (\w+) is in the table of app\.Clip\. Guard that model: "
    joins = "its filter or exclude joins another table. Copy what it asks for to a field of the row"
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (movie, {}, of_child),
        (movie, {"field": "state"}, of_child),
        (clip, {"filter": Q(channel__name="news")}, joins),
        (proxy, {"exclude": Q(channel__name="news")}, joins),
        (clip, {"filter": Q(status=F("channel__name"))}, joins),
        (channel, {"field": "name", "fence_field": None, "filter": Q(clips__status="x")}, joins),
        (clip, {"filter": Q(chanel=7)}, "Cannot resolve keyword 'chanel' into field"),
    ]
    for model, options, says in wrong:
        with pytest.raises(InvalidLockConfig, match=rf"the guard of app\.\w+: .*{says}"):
            guard(model, **options).claim(1, 5)
    base = {"base_manager_name": "of_news"}
    fields: dict[str, Any] = {"status": text(), "lock_fence": models.BigIntegerField(null=True)}
    joined = models.ForeignKey(channel, models.CASCADE, related_name="+")
    for model, options in (
        (proxy, {}),
        (model_named("Based", channel=joined, of_news=OfNews(), meta=base, **fields), {}),
        (movie, {"field": "state", "fence_field": None}),
        (clip, {"filter": Q(channel=7), "exclude": Q(channel__isnull=True)}),
        (channel, {"field": "name", "fence_field": None, "exclude": Q(clips__status="x")}),
    ):
        assert guard(model, **options).model is model
        assert "WHERE" not in str(guard(model, **options).rows().query)


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("app.Job", {"source": []}, "at least one source"),
        ("app.Job", {"to": "queued"}, "must not be in source or done"),
        ("app.Job", {"failed": "working"}, "must not be to or done"),
        ("app.Job", {"filter": {"status": "x"}}, "filter must be a Q"),
        ("Job", {}, "app.Model"),
        ("nowhere.Job", {}, "nowhere"),
        ("app.Job", {"field": "state"}, "state"),
        (Job, {"fence_field": "fence"}, "fence"),
    ],
)
def test_what_cannot_be_meant_is_said(model: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidLockConfig, match=says):
        guard(model, **options).field_trouble()


class Status(models.TextChoices):
    queued, again, working, done = ("queued", "again", "working", "done")


NO_FENCE, NO_FAILED = {"fence_field": None}, {"fence_field": None, "failed": None}
BIG, CHARS, DECIMAL = models.BigIntegerField, models.CharField, models.DecimalField


@pytest.mark.parametrize(
    ("of_status", "of_fence", "options", "says"),
    [
        (models.TextField(), BIG(null=True), {}, "^$"),
        (models.TextField(), DECIMAL(null=True, max_digits=18, decimal_places=2), {}, "^$"),
        (models.TextField(), models.PositiveBigIntegerField(null=True), {}, "^$"),
        (CHARS(choices=Status.choices, max_length=7), BIG(), NO_FAILED, "^$"),
        (CHARS(choices=Status.choices), BIG(), NO_FAILED | {"to": Status.working}, "^$"),
        # A fence has 16 digits.
        (models.TextField(), BIG(), {}, "must allow null"),
        (
            models.TextField(), models.IntegerField(null=True), {},
            r"cannot hold a fence.*Use BigIntegerField\(",
        ),
        (
            models.TextField(), DECIMAL(null=True, max_digits=17, decimal_places=2), {},
            "cannot hold",
        ),
        (CHARS(choices={"old": Status.choices}), BIG(), NO_FENCE, r"has no choice 'failed'\."),
        (CHARS(max_length=6), BIG(), NO_FENCE, "cannot hold 'working': its max_length is 6"),
    ],
    ids=repr,
)  # fmt: skip
@isolate_apps("tests.app")
def test_a_field_that_cannot_hold_what_the_guard_writes_is_said(
    of_status: Any, of_fence: Any, options: dict[str, Any], says: str
) -> None:
    called = f"Row{len(apps.get_app_config('app').models)}"
    model = model_named(called, status=of_status, lock_fence=of_fence)
    assert re.search(says, guard(model, **options).field_trouble())
