"""Rows whose run has died: which the doctor calls lost, and what it sends again."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.core.management import call_command
from django.db import connection, models
from django.db.models import Q
from django.test.utils import isolate_apps

from django_tasklock import lock, locks
from django_tasklock.guards import StatusGuard, mark_of
from tests.app.models import Job
from tests.command import doctor, doctor_json
from tests.conftest import UseCaches
from tests.findings import fenced, guard, lost
from tests.inside import diagnose, operators, owner_record
from tests.mailroom import Mailroom, mailroom
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, held_by, holder, taken
from tests.store_cases import redis_cache
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)
WELL = ("Nothing is wrong.\n", 0)


def freed(row: Job, found: dict[str, Any], runs: list[int], room: Mailroom) -> None:
    """What the hint of a row that no run may claim says helps."""
    assert found["hint"] == (
        "If no run of it lives, set its lock_fence to NULL first. "
        f"Send {found['task']} again: manage.py locks doctor --requeue"
    )
    Job.objects.update(lock_fence=None)
    assert doctor_json("--requeue")[0][0]["requeued"] == "sent again"
    room.work_off()
    assert runs == [row.pk]
    assert doctor() == WELL


# ------------------------------------------------------------------------------ lost work


def test_a_row_is_lost_if_nobody_holds_its_lock_and_says_which(room: Mailroom) -> None:
    # Given a row that a run has claimed, and a lock that an operator holds: what is sent now would
    # be skipped, or wait
    task, job = room.task(guard=fenced()), Job.objects.create()
    lease = taken(f"job:{job.pk}")
    assert task.guard.claim(job.pk, lease.fence)
    lease.release()
    assert locks.hold(f"job:{job.pk}", LONG, "alice", "a migration") is not None
    assert diagnose() == []

    # When nobody holds it, I expect the row to be lost, and to be told how to send it again
    assert locks.clear(f"job:{job.pk}")
    (problem,) = diagnose()
    assert problem.as_json() == {
        "kind": "lost work", "what": f"app.Job {job.pk}", "serious": True,
        "message": f"The row is “processing”, and nobody holds its lock job:{job.pk}.",
        "hint": f"Send {task.name} again: manage.py locks doctor --requeue",
        "task": task.name, "pk": str(job.pk), "model": "app.Job",
        "store": "default", "lock": f"job:{job.pk}",
    }  # fmt: skip


def test_exactly_the_stranded_rows_are_found_among_healthy_ones(room: Mailroom) -> None:
    room.task(guard=fenced())
    Job.objects.create(status="queued")
    Job.objects.create(status="done", lock_fence=7)
    rows = [Job.objects.create(status="processing").pk for _ in range(40)]
    for pk in rows:
        held_by(owner_record("task", "id"), f"job:{pk}")
        Job.objects.filter(pk=pk).update(lock_fence=holder(f"job:{pk}").fence)
    # A row set by hand, a run whose lock was cleared, and one whose lock ran out.
    by_hand = Job.objects.create(status="processing").pk
    assert locks.clear(f"job:{rows[3]}")
    cache.set(f"lock:job:{rows[7]}", "out of time", timeout=0.01)
    until(lambda: cache.get(f"lock:job:{rows[7]}") is None)
    assert lost() == {by_hand, rows[3], rows[7]}


def test_rows_of_runs_that_come_and_go_quickly_are_never_among_them(room: Mailroom) -> None:
    """Eight jobs run over and over while the doctor looks, and no fence tells the runs apart."""
    claims = guard()
    room.task(guard=claims)
    stranded = Job.objects.create(status="processing").pk
    rows = [Job.objects.create(status="queued").pk for _ in range(8)]
    over = threading.Event()
    runs: list[int] = []
    found: list[set[Any]] = []

    def work() -> None:
        chance = random.Random()
        while not over.is_set():
            pk = chance.choice(rows)
            lease = locks.acquire(f"job:{pk}", ttl=60)
            if lease is None:
                continue
            if claims.claim(pk, lease.fence):
                time.sleep(chance.choice([0, 0, 0.001, 0.02]))
                claims.finish(pk, lease.fence)
                Job.objects.filter(pk=pk, status="done").update(status="queued")
                runs.append(pk)
            lease.release()

    def looked_often() -> bool:
        found.append(lost())
        return len(found) >= 8 and len(runs) > 200

    workers = [Meanwhile(work) for _ in range(3)]
    try:
        until(looked_often)
    finally:
        over.set()
    for worker in workers:
        worker.result()
    assert found == [{stranded}] * len(found)


@pytest.mark.parametrize(
    "name", ["job:{job}:{other}", None, lambda job, other: f"job:{job}:{other or 'hd'}"]
)
def test_a_lock_that_is_not_the_keys_alone_is_not_guessed(room: Mailroom, name: Any) -> None:
    """Its run may be alive under another name: said once, and not as an error."""
    task = room.task(guard=guard(), lock_name=name)
    for _ in range(3):
        Job.objects.create(status="processing")
    (problem,) = diagnose()
    assert (problem.kind, problem.what, problem.serious) == ("unknown", "app.Job", False)
    assert "perhaps lost: 3." in problem.message
    assert task.name in problem.hint
    said = {"task": None, "store": None, "lock": None, "model": "app.Job", "pk": None}
    assert said.items() <= problem.as_json().items()
    assert doctor()[1] == 0


def with_another(job: Any, other: Any) -> None: ...


def alone(job: Any) -> None: ...


@pytest.mark.parametrize("key", [int, str])
@pytest.mark.parametrize(
    ("name", "body", "others"),
    [
        ("job:{job}", with_another, ["sd"]),
        (lambda job, other: f"job:{job}", with_another, ["sd"]),
        (lambda job, **_: f"job/{job}", with_another, ["sd"]),
        (None, alone, []),  # A digest of the key.
    ],
)
def test_a_lock_that_is_the_keys_alone_is_known_however_the_key_was_passed(
    room: Mailroom, name: Any, body: Any, others: list[str], key: type
) -> None:
    task = room.register(body, name="one", guard=guard(), lock_name=name)
    alive, dead = (Job.objects.create(status="processing").pk for _ in range(2))
    with lock(task.lock_name_of((key(alive), *others), {})):
        assert lost() == {dead}


def test_tasks_that_claim_the_same_rows_are_one_kind_of_work(room: Mailroom) -> None:
    """A row is lost if none of their locks is held; it is one row, and sent once."""
    even = Q(done_count=0)
    room.task(name="a-even", guard=guard(filter=even), lock_name="even:{job}")
    room.task(name="b-odd", guard=guard(filter=~even), lock_name="odd:{job}")
    room.task(name="c-other", guard=guard(to="sending"), lock_name="sending:{job}")
    held, first, second = (
        Job.objects.create(status="processing", done_count=count) for count in (0, 0, 1)
    )
    other = Job.objects.create(status="sending")
    with lock(f"odd:{held.pk}"):
        found = {problem.pk: problem for problem in diagnose()}
    works = {pk: problem.work.task for pk, problem in found.items()}
    assert works == {first.pk: "a-even", second.pk: "b-odd", other.pk: "c-other"}


def test_a_row_that_is_lost_in_two_of_its_fields_is_sent_for_each(room: Mailroom) -> None:
    """Two tasks with a status each do not claim the same row."""
    room.task(name="first", guard=guard(), lock_name="first:{job}")
    room.task(name="second", lock_name="second:{job}", guard=StatusGuard(
        "app.Job", pk="job", field="result_file", source="", to="busy", done="made"))  # fmt: skip
    Job.objects.create(status="processing", result_file="busy")
    found, status = doctor_json("--requeue")
    assert {each["task"]: each["requeued"] for each in found} == {
        "first": "sent again", "second": "sent again",
    }  # fmt: skip
    assert status == 0


def test_work_of_another_store_is_looked_at_with_that_store(
    use_caches: UseCaches, redis_server: RedisServer
) -> None:
    use_caches(
        {"default": redis_cache(redis_server.url), "second": redis_cache(redis_server.url)},
        {"default": {}, "second": {"CACHE": "second"}},
    )
    with mailroom(redis_server.url) as room:
        room.task(guard=fenced(), lock_store="second")
        job = Job.objects.create(status="processing")
        with lock(f"job:{job.pk}", store="second"):
            assert lost() == set()
        with lock(f"job:{job.pk}"):
            assert lost() == {job.pk}
        assert doctor("--store", "default")[1] == 0
        assert doctor("--store", "second")[1] == 1


# ------------------------------------------------------------------------------ sent again


def test_lost_work_is_sent_again_once_each_time_that_it_is_lost(room: Mailroom) -> None:
    runs: list[int] = []
    task = room.task(lambda self, job: runs.append(job), guard=fenced(), unique_while="queued")
    job = Job.objects.create(status="processing")
    # A copy that is reserved, and will never come, does not stand in the way.
    task.delay(job.pk)
    room.take()
    (found,), status = doctor_json("--requeue")
    # What was sent again is mended, also where another doctor did it
    assert (found["requeued"], status) == ("sent again", 0)
    assert (found["task"], [found["task_id"]]) == (task.name, room.ids())
    (found,), status = doctor_json("--requeue")
    assert (found["requeued"], found["task_id"], status) == ("sent a moment ago", None, 0)
    # Its run claimed the row, and was killed as well
    room.take()
    lease = taken(f"job:{job.pk}")
    assert task.guard.claim(job.pk, lease.fence)
    lease.release()
    assert doctor_json("--requeue")[0][0]["requeued"] == "sent again"
    assert [state for state, _ in room.work_off()] == ["SUCCESS"]
    assert runs == [job.pk]
    job.refresh_from_db()
    assert job.status == "done"
    call_command("locks", "clear", "--queued", "--all", interactive=False)
    assert doctor() == WELL


def test_a_row_whose_fence_refuses_every_run_is_not_sent_again(room: Mailroom) -> None:
    runs: list[int] = []
    room.task(lambda self, job: runs.append(job), guard=fenced())
    job = Job.objects.create(status="processing", lock_fence=10**16)
    (found,), status = doctor_json("--requeue")
    assert (found["kind"], found["what"], status) == ("fence", f"app.Job {job.pk}", 1)
    assert f"its fence {10**16} is larger than any lease’s now" in found["message"]
    assert (found["requeued"], room.waiting()) == (None, [])
    freed(job, found, runs, room)


def test_47_a_row_of_a_run_without_the_lock_is_not_called_lost_nor_sent_again(
    room: Mailroom,
) -> None:
    """Whether it lives is not known."""
    runs: list[int] = []
    room.task(lambda self, job: runs.append(job), guard=fenced(), on_outage="run")
    job = Job.objects.create()
    assert fenced().claim_alone(job.pk, mark_of(None))
    (found,), status = doctor_json("--requeue")
    assert (found["kind"], found["what"], status) == ("unknown", f"app.Job {job.pk}", 0)
    assert found["message"] == (
        "The row is “processing”: a run without the lock has claimed it, and may be at work."
    )
    assert (found["requeued"], room.waiting()) == (None, [])
    assert operators("lost_work").still_lost([problem.seen for problem in diagnose()]) == []
    freed(job, found, runs, room)


def test_what_could_not_be_sent_counts_as_not_sent(room: Mailroom) -> None:
    """The row's own problem, not that of the rows after it: and the next doctor sends it."""
    task = room.task(guard=fenced(), serializer="no-such")
    Job.objects.bulk_create([Job(status="processing"), Job(status="processing")])
    found, status = doctor_json("--requeue")
    assert [each["requeued"].partition(":")[0] for each in found] == ["could not be sent"] * 2
    assert status == 1
    task.serializer, task._exec_options = "json", None
    found, _ = doctor_json("--requeue")
    assert [each["requeued"] for each in found] == ["sent again"] * 2
    assert len(room.waiting()) == 2


@pytest.mark.parametrize("typing", [True, False])
def test_a_task_that_needs_more_than_the_key_is_not_sent(room: Mailroom, typing: bool) -> None:
    def body(job: int, preset: str) -> None: ...

    room.register(body, name="two", guard=guard(), lock_name="job:{job}", typing=typing)
    Job.objects.create(status="processing")
    (found,), status = doctor_json("--requeue")
    assert status == 1
    assert found["requeued"].startswith("could not be sent: missing a required argument")
    assert "preset" in found["requeued"]
    assert room.waiting() == []


@pytest.fixture
def part() -> Iterator[Any]:
    """A model whose primary key is of two columns."""
    columns = {
        "pk": models.CompositePrimaryKey("tenant", "number"), "number": models.IntegerField(),
        "tenant": models.CharField(max_length=20), "status": models.CharField(max_length=20),
        "Meta": type("Meta", (), {"app_label": "app"}), "__module__": __name__,
    }  # fmt: skip
    with isolate_apps("tests.app"), connection.schema_editor() as editor:
        made: Any = type("Part", (models.Model,), columns)
        editor.create_model(made)
    yield made
    with connection.schema_editor() as editor:
        editor.delete_model(made)


def test_a_lost_row_with_a_composite_key_is_sent_again(room: Mailroom, part: Any) -> None:
    room.task(guard=StatusGuard(part, pk="job", source="new", to="busy", done="done"))
    for number in (1, 2):
        part.objects.create(tenant='a "b", c', number=number, status="busy")
    seen = [problem.seen for problem in diagnose() if problem.pk[1] == 2]
    (row,) = operators("lost_work").still_lost(seen)
    assert operators("lost_work").requeue(row)[0]
    assert [message.kwargs for message in room.waiting()] == [{"job": ['a "b", c', 2]}]
    # The row of a lock is looked for by the parts of its name, none of which is such a key
    held_by(owner_record(row.work.task, "id") | {"start": 1}, "job:1")
    assert operators("rows").row_if_known(holder("job:1")) is None
