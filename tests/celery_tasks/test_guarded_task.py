"""LockedTask with a guard, without a worker: the row says whether there is still work."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
from celery.exceptions import Retry, SoftTimeLimitExceeded

from django_tasklock import StatusConflict, StoreUnavailable, locks
from django_tasklock.guards import StatusGuard
from tests.app.models import Job
from tests.celery_tasks.test_locked_task import MakeTask, on_redis, process, task
from tests.conftest import UseRedis
from tests.servers import free_port
from tests.steps import taken

__all__ = ["on_redis", "task"]

GUARD = StatusGuard(
    "app.Job",
    pk="video",
    source=["queued", "again"],
    to="working",
    done="done",
    failed="failed",
    fence_field="lock_fence",
)


def replaced(guard: StatusGuard, fence_field: str | None) -> StatusGuard:
    """The guard with another fence field, or with none."""
    other = copy.copy(guard)
    other.fence_field = fence_field
    return other


def of_class(kind: type[StatusGuard], fence_field: str | None) -> StatusGuard:
    """A guard of the same rows, of a class of its own."""
    return kind(
        "app.Job", pk="video", source="queued", to="working", done="done", failed="failed",
        fence_field=fence_field,
    )  # fmt: skip


@pytest.mark.django_db
class TestGuard:
    """In a TestCase's own transaction, as a user's tests run."""

    @pytest.fixture
    def row(self) -> Job:
        row: Job = Job.objects.create()
        return row

    def status(self, row: Job) -> str:
        row.refresh_from_db()
        return row.status

    @pytest.mark.parametrize("fence_field", ["lock_fence", None], ids=["", "without-a-fence"])
    @pytest.mark.parametrize(
        ("interruption", "left_as"),
        [(SoftTimeLimitExceeded, "failed"), (SystemExit, "queued"), (LookupError, "working")],
    )
    def test_run_that_is_interrupted_in_its_claim_does_not_leave_its_row_claimed(
        self,
        task: MakeTask,
        row: Job,
        fence_field: str | None,
        interruption: type[BaseException],
        left_as: str,
    ) -> None:
        """Any other error is the database's: of its row, nothing is known."""

        class Interrupted(StatusGuard):
            def claim(self, pk: Any, fence: int | None = None) -> bool:
                assert super().claim(pk, fence)
                raise interruption

        guard = of_class(Interrupted, fence_field)
        with pytest.raises(interruption):
            task(process, guard=guard)(row.pk)
        assert self.status(row) == left_as
        assert not locks.is_locked(f"video:{row.pk}")

    @pytest.mark.parametrize("how", ["directly", "eagerly"])
    def test_row_is_claimed_and_finished(self, task: MakeTask, row: Job, how: str) -> None:
        seen = []

        def look(self: Any, video: int) -> str:
            found = Job.objects.get(pk=video)
            seen.append((found.status, found.lock_fence == self.lease.fence))
            return "done"

        made = task(look, guard=GUARD)
        assert (made(row.pk) if how == "directly" else made.delay(row.pk).get()) == "done"
        assert seen == [("working", True)]
        assert self.status(row) == "done"

    @pytest.mark.parametrize("fence_field", ["lock_fence", None], ids=["", "without-a-fence"])
    @pytest.mark.parametrize(("written", "left_as"), [(False, "failed"), (True, "done")])
    def test_run_whose_finish_meets_its_time_limit_does_not_leave_its_row_claimed(
        self, task: MakeTask, row: Job, written: bool, left_as: str, fence_field: str | None
    ) -> None:
        """Its task has failed, and no other run comes."""

        class Interrupted(StatusGuard):
            def finish(self, pk: Any, fence: int | None = None) -> None:
                if written:
                    super().finish(pk, fence)
                raise SoftTimeLimitExceeded

        guard = of_class(Interrupted, fence_field)
        with pytest.raises(SoftTimeLimitExceeded):
            task(process, guard=guard)(row.pk)
        assert self.status(row) == left_as
        assert not locks.is_locked(f"video:{row.pk}")

    def test_row_in_no_state_to_be_worked_on_is_skipped(
        self, task: MakeTask, row: Job, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "django_tasklock")
        made = task(process, guard=GUARD)
        assert made(row.pk) == f"{row.pk} as hls"
        assert made(row.pk) == {
            "status": "skipped",
            "reason": "invalid_state",
            "lock": f"video:{row.pk}",
            "holder": None,
        }
        assert not locks.is_locked(f"video:{row.pk}")
        (said,) = [text for text in caplog.messages if text.startswith("skipped")]
        assert said.startswith(f"skipped {made.name}[")
        assert said.endswith(
            f"]: its row app.Job {row.pk} is not in a state to be worked on, lock video:{row.pk}"
        )

    def test_row_of_a_dead_run_is_worked_on_again(self, task: MakeTask, row: Job) -> None:
        Job.objects.update(status="working", lock_fence=1)
        assert task(process, guard=GUARD)(row.pk) == f"{row.pk} as hls"
        assert self.status(row) == "done"

    def test_row_of_a_body_that_raised_has_failed(self, task: MakeTask, row: Job) -> None:
        def fail(self: Any, video: int) -> None:
            raise KeyError("boom")

        with pytest.raises(KeyError):
            task(fail, guard=GUARD)(row.pk)
        assert self.status(row) == "failed"

    def test_row_of_a_body_that_will_be_repeated_waits_again(
        self, task: MakeTask, row: Job
    ) -> None:
        def retry(self: Any, video: int) -> None:
            raise Retry("later")

        with pytest.raises(Retry):
            task(retry, guard=GUARD)(row.pk)
        assert self.status(row) == "queued"

    def test_a_guard_may_override_how_its_row_is_reopened(self, task: MakeTask, row: Job) -> None:
        reopened = []

        class Noting(StatusGuard):
            def reopen(self, pk: Any, fence: int | None = None) -> bool:
                reopened.append(pk)
                return super().reopen(pk, fence)

        guard = Noting("app.Job", pk="video", source="queued", to="working", done="done")

        def retry(self: Any, video: int) -> None:
            raise Retry("later")

        with pytest.raises(Retry):
            task(retry, guard=guard)(row.pk)
        assert reopened == [row.pk]
        assert self.status(row) == "queued"

    def test_retries_of_an_eager_task_finish_the_row(self, task: MakeTask, row: Job) -> None:
        def retry(self: Any, video: int) -> str:
            if self.request.retries < 2:
                raise self.retry(countdown=0)
            return "third time"

        result = task(retry, guard=GUARD, max_retries=3).delay(row.pk)
        assert result.get() == "third time"
        assert self.status(row) == "done"

    def test_row_of_a_body_that_was_interrupted_waits_again(self, task: MakeTask, row: Job) -> None:
        def leave(self: Any, video: int) -> None:
            raise SystemExit

        with pytest.raises(SystemExit):
            task(leave, guard=GUARD)(row.pk)
        assert self.status(row) == "queued"

    def test_row_that_somebody_changed_meanwhile_is_a_conflict(
        self, task: MakeTask, row: Job
    ) -> None:
        def change(self: Any, video: int) -> str:
            Job.objects.update(status="elsewhere")
            return "not so"

        with pytest.raises(StatusConflict):
            task(change, guard=GUARD)(row.pk)
        assert self.status(row) == "elsewhere"
        assert not locks.is_locked(f"video:{row.pk}")

    def test_call_inside_its_own_run_does_not_claim_again(self, task: MakeTask, row: Job) -> None:
        def again(self: Any, video: int, inner: bool = False) -> str:
            return "inner" if inner else again_task(video, True)

        again_task = task(again, guard=GUARD)
        assert again_task(row.pk) == "inner"
        assert self.status(row) == "done"

    @pytest.mark.parametrize("how", ["directly", "eagerly"])
    def test_call_inside_another_run_claims_a_row_of_its_own(
        self, task: MakeTask, row: Job, how: str
    ) -> None:
        """A task with the same lock, and the task itself for another row: each has its guard."""
        other = Job.objects.create()
        seen: list[tuple[int, str]] = []

        def look(self: Any, video: int, then: int | None = None) -> Any:
            seen.append((video, Job.objects.get(pk=video).status))
            return then and call(inner, then)

        def hand_over(self: Any, video: int) -> Any:
            return call(inner, video)

        def call(made: Any, *args: int) -> Any:
            return made(*args) if how == "directly" else made.delay(*args).get()

        inner = task(look, guard=GUARD, lock_name="all")
        outer = task(hand_over, lock_name="all")
        outer(row.pk)
        assert (seen, self.status(row)) == ([(row.pk, "working")], "done")
        assert outer(row.pk)["reason"] == "invalid_state"
        Job.objects.update(status="queued")
        inner(row.pk, other.pk)
        assert seen[1:] == [(row.pk, "working"), (other.pk, "working")]
        assert (self.status(row), self.status(other)) == ("done", "done")
        assert not locks.is_locked("all")

    def test_taken_lock_leaves_the_row_alone(self, task: MakeTask, row: Job) -> None:
        taken(f"video:{row.pk}")
        assert task(process, guard=GUARD)(row.pk)["reason"] == "already_processing"
        assert self.status(row) == "queued"


class TestOutage:
    @pytest.fixture(autouse=True)
    def nowhere(self, use_redis: UseRedis) -> None:
        use_redis(f"redis://127.0.0.1:{free_port()}/0", SOCKET_CONNECT_TIMEOUT=1)

    @pytest.mark.parametrize("on_outage", ["raise", "retry"])
    def test_it_is_never_a_skip(self, task: MakeTask, on_outage: str) -> None:
        """Without a queue to go back to, the caller is told."""
        made = task(process, on_outage=on_outage)
        with pytest.raises(StoreUnavailable):
            made(7)
        with pytest.raises(StoreUnavailable):
            made.delay(7).get()

    @pytest.mark.django_db
    def test_guard_alone_may_do(self, task: MakeTask) -> None:
        def body(self: Any, video: int) -> str:
            return "ran"

        row = Job.objects.create()
        made = task(body, on_outage="run", guard=GUARD)
        assert made(row.pk) == "ran"
        row.refresh_from_db()
        assert row.status == "done"
        assert made(row.pk)["reason"] == "invalid_state"

    @pytest.mark.django_db
    @pytest.mark.parametrize("fence_field", ["lock_fence", None], ids=["fence", "no fence"])
    def test_row_of_another_run_is_left_to_it(
        self, task: MakeTask, fence_field: str | None
    ) -> None:
        """Whether that run lives only the lock could say."""
        row = Job.objects.create(status="working", lock_fence=5)
        runs: list[int] = []

        def body(self: Any, video: int) -> None:
            runs.append(video)

        made = task(body, on_outage="run", guard=replaced(GUARD, fence_field))
        with pytest.raises(StoreUnavailable):
            made(row.pk)
        row.refresh_from_db()
        assert (runs, row.status, row.lock_fence) == ([], "working", 5)

    @pytest.mark.django_db
    def test_who_claims_it_under_the_lock_meanwhile_is_not_overwritten(
        self, task: MakeTask
    ) -> None:
        """The store is back before the run that began without it has ended."""

        def body(self: Any, video: int) -> str:
            assert GUARD.claim(video, 1_700_000_000_000_000)
            return "ran"

        row = Job.objects.create(lock_fence=7)
        made = task(body, on_outage="run", guard=GUARD)
        with pytest.raises(StatusConflict):
            made(row.pk)
        row.refresh_from_db()
        assert (row.status, row.lock_fence) == ("working", 1_700_000_000_000_000)
