"""``manage.py locks doctor``: rows, locks and servers. With workers: ``tests/acceptance/queue``."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.core.cache import cache
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connections, models
from django.test.utils import override_settings

from django_tasklock import locks
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.guards import StatusGuard
from django_tasklock.operators import claimed_rows, gone_owners, work
from django_tasklock.operators.doctor import Problem, diagnose, requeue
from django_tasklock.stores import stores
from tests.app.models import Job
from tests.conftest import UseCaches, UseRedis
from tests.mailroom import Mailroom, mailroom
from tests.servers import RedisServer
from tests.steps import LONG, Traffic, all_of, in_child, taken
from tests.store_cases import own_prefix, redis_cache
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)
HEALTHY = 10_000


class JobsOnPostgres:
    """Sends the jobs to PostgreSQL."""

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str | None:
        return "postgres" if model is Job else None

    db_for_write = db_for_read


@pytest.fixture(params=["sqlite", "postgresql"])
def jobs(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The table of jobs, on each database."""
    if request.param == "sqlite":
        yield Job.objects
        return
    alias = request.getfixturevalue("postgres_alias")
    with connections[alias].schema_editor() as editor:
        editor.create_model(Job)
    try:
        with override_settings(DATABASE_ROUTERS=[f"{__name__}.JobsOnPostgres"]):
            yield Job.objects
    finally:
        with connections[alias].schema_editor() as editor:
            editor.delete_model(Job)


@pytest.fixture
def room(use_redis: UseRedis, redis_server: RedisServer) -> Iterator[Mailroom]:
    use_redis()
    with mailroom(redis_server.url) as room:
        yield room


def guard(**options: Any) -> StatusGuard:
    options = {
        "pk": "job",
        "source": ["queued"],
        "to": "processing",
        "done": "done",
        "failed": "failed",
        **options,
    }
    return StatusGuard(Job, **options)


def fenced(**options: Any) -> StatusGuard:
    return guard(fence_field="lock_fence", **options)


def problems(kind: str) -> list[Problem]:
    return [problem for problem in diagnose() if problem.kind == kind]


def lost() -> set[Any]:
    return {problem.pk for problem in problems("lost work")}


def doctor(*arguments: str) -> tuple[str, int]:
    """What the command prints, and its exit status."""
    out = io.StringIO()
    try:
        call_command("locks", "doctor", *arguments, stdout=out, stderr=io.StringIO())
    except CommandError as error:
        return out.getvalue(), error.returncode
    return out.getvalue(), 0


def doctor_json(*arguments: str) -> tuple[list[dict[str, Any]], int]:
    said, status = doctor("--format", "json", *arguments)
    return json.loads(said), status


# ------------------------------------------------------------------------------ lost work


def test_nothing_is_wrong(room: Mailroom) -> None:
    room.task(guard=fenced())
    Job.objects.create(status="done")
    Job.objects.create(status="queued")
    assert doctor() == ("Nothing is wrong.\n", 0)
    assert doctor_json() == ([], 0)


def test_exactly_the_rows_stranded_on_purpose_among_ten_thousand(room: Mailroom, jobs: Any) -> None:
    room.task(guard=fenced())
    living = range(HEALTHY // 4)
    jobs.bulk_create(
        [
            *(Job(status="processing", lock_fence=1000 + n) for n in living),
            *(Job(status="queued") for _ in living),
            *(Job(status="done", lock_fence=n) for n in range(HEALTHY // 2)),
        ],
        batch_size=2000,
    )
    assert jobs.count() == HEALTHY
    store = stores["default"]
    pks = list(jobs.values_list("pk", "status"))
    for pk, status in pks:
        if status == "processing":
            store.acquire(f"job:{pk}", new_token(), 600, owner_record("task", "id"))
    chance = random.Random(1)
    # Rows set by hand, runs whose lock is gone, and one whose lock ran out.
    by_hand = chance.sample([pk for pk, status in pks if status == "queued"], 3)
    jobs.filter(pk__in=by_hand).update(status="processing")
    killed = chance.sample([pk for pk, status in pks if status == "processing"], 4)
    for pk in killed[:3]:
        assert locks.clear(f"job:{pk}")
    cache.set(f"lock:job:{killed[3]}", "out of time", timeout=0.01)
    until(lambda: cache.get(f"lock:job:{killed[3]}") is None)
    assert lost() == {*by_hand, *killed}


@pytest.mark.parametrize("fence", [True, False], ids=["fence", "no-fence"])
def test_rows_of_runs_that_come_and_go_quickly_are_never_among_them(
    room: Mailroom, jobs: Any, fence: bool
) -> None:
    """Eight jobs run over and over while the doctor looks."""
    claims = fenced() if fence else guard()
    room.task(guard=claims)
    stranded = jobs.create(status="processing").pk
    rows = [jobs.create(status="queued").pk for _ in range(8)]
    over = threading.Event()
    runs: list[int] = []

    def work() -> None:
        chance = random.Random()
        try:
            while not over.is_set():
                pk = chance.choice(rows)
                lease = locks.acquire(f"job:{pk}", ttl=60)
                if lease is None:
                    continue
                if claims.claim(pk, lease.fence):
                    time.sleep(chance.choice([0, 0, 0.001, 0.02]))
                    claims.finish(pk, lease.fence)
                    jobs.filter(pk=pk, status="done").update(status="queued")
                    runs.append(pk)
                lease.release()
        finally:
            connections.close_all()

    found: list[set[Any]] = []

    def look() -> None:
        begun = time.monotonic()
        try:
            while len(found) < 8 or time.monotonic() < begun + 1.5:
                found.append(lost())
        finally:
            over.set()
            connections.close_all()

    all_of(look, work, work, work)
    assert found == [{stranded}] * len(found)
    assert len(runs) > 20


def test_a_row_says_which_lock_nobody_holds(room: Mailroom) -> None:
    task = room.task(guard=fenced())
    job = Job.objects.create(status="processing", lock_fence=7)
    (problem,) = diagnose()
    assert problem.as_json() == {
        "kind": "lost work",
        "what": f"app.Job {job.pk}",
        "message": f"is 'processing', and nobody holds its lock job:{job.pk}",
        "hint": "Send it again: manage.py locks doctor --requeue",
        "serious": True,
        "task": task.name,
        "pk": str(job.pk),
        "model": "app.Job",
        "store": "default",
        "lock": f"job:{job.pk}",
    }
    said, status = doctor()
    assert status == 1
    header, row = said.splitlines()
    assert header.split() == ["PROBLEM", "WHAT", "WHY", "WHAT", "TO", "DO"]
    assert row.startswith(f"lost work  app.Job {job.pk}  is 'processing'")
    (found,), status = doctor_json()
    assert (found["pk"], found["requeued"], status) == (str(job.pk), None, 1)


def test_a_lost_row_whose_lock_an_operator_holds_is_found_and_not_sent(room: Mailroom) -> None:
    """A hold is no run. What is sent meanwhile would be skipped, or wait."""
    room.task(guard=fenced())
    job = Job.objects.create(status="processing", lock_fence=7)
    assert locks.hold(f"job:{job.pk}", LONG, "alice", "a migration") is not None
    (found,), status = doctor_json("--requeue")
    assert status == 1
    assert (found["kind"], found["lock"], found["requeued"]) == (
        "lost work", f"job:{job.pk}", None,
    )  # fmt: skip
    assert found["message"] == (
        f"is 'processing', no run works on it, and its lock job:{job.pk} is held by operator "
        "alice (a migration)"
    )
    assert found["hint"] == "After the hold, send it again: manage.py locks doctor --requeue"
    assert locks.clear(f"job:{job.pk}")
    (found,), status = doctor_json("--requeue")
    assert (found["requeued"], status) == ("sent again", 0)


def test_a_lock_that_is_not_the_keys_alone_is_not_guessed(room: Mailroom) -> None:
    """Its run may be alive under another name: said once, and not as an error."""
    for name in (
        "job:{job}:{other}",
        None,
        lambda job, other: f"job:{job}:{other or 'hd'}",
        lambda job, **arguments: f"job:{job}:{arguments.get('other')}",
    ):
        task = room.task(guard=guard(), lock_name=name)
        rows = [Job.objects.create(status="processing") for _ in range(3)]
        with locks_held(task.lock_name_of((rows[0].pk, "sd"), {})):
            (problem,) = diagnose()
        assert (problem.kind, problem.what, problem.serious) == ("unknown", "app.Job", False)
        assert "3 rows" in problem.message
        assert task.name in problem.hint
        assert doctor()[1] == 0
        room.app.tasks.pop(task.name)
        Job.objects.all().delete()


def test_a_lock_that_is_the_keys_alone_is_known(room: Mailroom) -> None:
    """However it is named, with other arguments beside, and with the key passed as text."""
    for name in (
        "job:{job}",
        lambda job, other: f"job:{job}",
        lambda job, **_: f"job/{job}",
    ):
        task = room.task(guard=guard(), lock_name=name)
        alive, dead = (Job.objects.create(status="processing").pk for _ in range(2))
        with locks_held(task.lock_name_of((str(alive), "sd"), {})):
            assert lost() == {dead}
        assert lost() == {alive, dead}
        room.app.tasks.pop(task.name)
        Job.objects.all().delete()


def test_a_digest_of_the_key_is_known_however_the_key_was_passed(room: Mailroom) -> None:
    def body(job: Any) -> None: ...

    digest = room.register(body, name="digest", guard=guard())
    for key in (int, str):
        alive, dead = (Job.objects.create(status="processing").pk for _ in range(2))
        with locks_held(digest.lock_name_of((key(alive),), {})):
            assert lost() == {dead}
        Job.objects.all().delete()


@contextlib.contextmanager
def locks_held(*names: str) -> Iterator[None]:
    leases = [taken(name) for name in names]
    try:
        yield
    finally:
        for lease in leases:
            lease.release()


def test_tasks_that_claim_the_same_rows_are_one_kind_of_work(room: Mailroom) -> None:
    """A row is lost if none of their locks is held; it is one row, and sent once."""
    even = models.Q(done_count=0)
    room.task(name="a-even", guard=guard(filter=even), lock_name="even:{job}")
    room.task(name="b-odd", guard=guard(filter=~even), lock_name="odd:{job}")
    room.task(name="c-other", guard=guard(to="sending"), lock_name="sending:{job}")
    held, first, second = (
        Job.objects.create(status="processing", done_count=count) for count in (0, 0, 1)
    )
    other = Job.objects.create(status="sending")
    with locks_held(f"odd:{held.pk}"):
        found = {problem.pk: problem for problem in diagnose()}
    works = {pk: problem.work.task for pk, problem in found.items() if problem.work}
    assert works == {first.pk: "a-even", second.pk: "b-odd", other.pk: "c-other"}


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
        with locks_held(f"job:{job.pk}"):
            assert lost() == {job.pk}
        lease = locks.using("second").acquire(f"job:{job.pk}", ttl=60)
        assert lease is not None
        assert lost() == set()
        lease.release()
        assert doctor("--store", "default")[1] == 0
        assert doctor("--store", "second")[1] == 1
        with pytest.raises(CommandError, match="third"):
            call_command("locks", "doctor", "--store", "third")


# ------------------------------------------------------------------------------ sent again


def test_lost_work_is_sent_again_once(room: Mailroom) -> None:
    runs: list[int] = []
    claims = fenced()
    task = room.task(lambda self, job: runs.append(job), guard=claims, unique_while="queued")
    job = Job.objects.create(status="processing")
    # A copy that is reserved, and will never come, does not stand in the way.
    task.delay(job.pk)
    room.take()
    (found, silent), status = doctor_json("--requeue")
    assert (silent["kind"], silent["requeued"], silent["task_id"]) == ("no message", None, None)
    # What was sent again is mended, also where another doctor did it
    assert (found["requeued"], status) == ("sent again", 0)
    assert (found["task"], [found["task_id"]]) == (task.name, room.ids())
    (found, _), status = doctor_json("--requeue")
    assert (found["requeued"], found["task_id"], status) == ("sent a moment ago", None, 0)
    assert [state for state, _ in room.work_off()] == ["SUCCESS"]
    assert runs == [job.pk]
    job.refresh_from_db()
    assert job.status == "done"
    call_command("locks", "clear", "--queued", "--all", interactive=False)
    assert doctor() == ("Nothing is wrong.\n", 0)


def test_the_table_names_the_message_that_was_sent(room: Mailroom) -> None:
    task = room.task(guard=fenced())
    job = Job.objects.create(status="processing")
    said, status = doctor("--requeue")
    (message,) = room.waiting()
    _, row = said.splitlines()
    assert row.startswith(f"lost work  app.Job {job.pk}  is 'processing'")
    assert row.endswith(f"  sent again: {task.name}[{message.id}]")
    assert (message.kwargs, status) == ({"job": job.pk}, 0)


def test_of_two_tasks_for_one_row_the_first_by_name_is_sent(room: Mailroom) -> None:
    for name in ("b-second", "a-first"):
        room.task(name=name, guard=fenced())
    Job.objects.create(status="processing")
    (found,), _ = doctor_json("--requeue")
    assert found["task"] == "a-first"
    assert [message.task for message in room.waiting()] == ["a-first"]


def test_what_was_not_mended_is_still_serious(room: Mailroom) -> None:
    task = room.task(guard=fenced())
    Job.objects.create(status="processing")
    cache.set("lock:for-ever", "somebody's", timeout=None)
    found, status = doctor_json("--requeue")
    assert {each["kind"]: each["requeued"] for each in found} == {
        "lost work": "sent again",
        "no ttl": None,
    }
    assert (task.name, status) == (found[0]["task"], 1)


# ------------------------------------------------------------------------------ fences


def test_a_row_whose_fence_refuses_every_run_is_not_sent_again(room: Mailroom) -> None:
    runs: list[int] = []
    room.task(lambda self, job: runs.append(job), guard=fenced())
    job = Job.objects.create(status="processing", lock_fence=10**16)
    (found,), status = doctor_json("--requeue")
    assert (found["kind"], found["what"], status) == ("fence", f"app.Job {job.pk}", 1)
    assert f"its fence {10**16} is larger than any lease's now" in found["message"]
    assert (found["requeued"], room.waiting()) == (None, [])
    # What the hint says helps
    assert found["hint"] == (
        "If no run of it lives, set its lock_fence to NULL, then send it again: "
        "manage.py locks doctor --requeue"
    )
    Job.objects.update(lock_fence=None)
    assert doctor_json("--requeue")[0][0]["requeued"] == "sent again"
    room.work_off()
    assert runs == [job.pk]
    assert doctor() == ("Nothing is wrong.\n", 0)


def test_a_fence_of_a_run_that_died_refuses_nobody(room: Mailroom) -> None:
    """Also where the fences are ahead of the server's clock, since that was set back."""
    task = room.task(guard=fenced())
    store: Any = stores["default"]
    store.client.ask("HSET", [store.keyspace.fences], b"", str(10**15 * 8))
    job = Job.objects.create()
    lease = taken(f"job:{job.pk}")
    assert lease.fence == 10**15 * 8 + 1
    assert task.guard.claim(job.pk, lease.fence)
    lease.release()
    assert lost() == {job.pk}


def test_of_many_doctors_at_once_one_sends_it(room: Mailroom) -> None:
    room.task(guard=fenced())
    rows = {Job.objects.create(status="processing").pk for _ in range(20)}
    together = threading.Barrier(4)

    def look_and_send() -> list[bool]:
        try:
            found = problems("lost work")
            together.wait(20)
            return [requeue(problem) is not None for problem in found]
        finally:
            connections.close_all()

    answers = all_of(*[look_and_send] * 4)
    assert sum(sum(answer) for answer in answers) == 20
    assert sorted(message.kwargs["job"] for message in room.waiting()) == sorted(rows)


def test_a_row_that_is_lost_again_is_sent_again(room: Mailroom) -> None:
    task = room.task(guard=fenced())
    job = Job.objects.create(status="processing")
    assert doctor_json("--requeue")[0][0]["requeued"] == "sent again"
    room.take()
    # Its run claimed the row, and was killed as well.
    task.guard.claim(job.pk, 5)
    assert doctor_json("--requeue")[0][0]["requeued"] == "sent again"
    assert [message.kwargs for message in room.waiting()] == [{"job": job.pk}]


def test_what_could_not_be_sent_counts_as_not_sent(room: Mailroom) -> None:
    """The row's own problem, not that of the rows after it: and the next doctor sends it."""
    task = room.task(guard=fenced(), serializer="no-such")
    Job.objects.create(status="processing")
    Job.objects.create(status="processing")
    found, status = doctor_json("--requeue")
    assert [each["requeued"].partition(":")[0] for each in found] == ["could not be sent"] * 2
    assert status == 1
    task.serializer, task._exec_options = "json", None
    found, _ = doctor_json("--requeue")
    assert [each["requeued"] for each in found] == ["sent again"] * 2
    assert len(room.waiting()) == 2


def test_a_key_that_is_positional_only_is_sent_by_its_place(room: Mailroom) -> None:
    def body(job: int, /, preset: str = "hd") -> None: ...

    room.register(body, name="place", guard=guard(), lock_name="job:{job}")
    row = Job.objects.create(status="processing")
    assert doctor_json("--requeue")[0][0]["requeued"] == "sent again"
    assert [state for state, _ in room.work_off()] == ["SUCCESS"]
    row.refresh_from_db()
    assert row.status == "done"


def body_of_two(job: int, preset: str) -> None: ...


def body_of_two_places(preset: str, job: int, /) -> None: ...


@pytest.mark.parametrize("typing", [True, False])
@pytest.mark.parametrize("body", [body_of_two, body_of_two_places])
def test_a_task_that_needs_more_than_the_key_is_not_sent(
    room: Mailroom, body: Any, typing: bool
) -> None:
    room.register(body, name="two", guard=guard(), lock_name="job:{job}", typing=typing)
    Job.objects.create(status="processing")
    (found,), status = doctor_json("--requeue")
    assert status == 1
    assert found["requeued"].startswith("cannot be sent from the row alone:")
    assert "preset" in found["requeued"]
    assert room.waiting() == []


# ------------------------------------------------------------------------------ locks


def test_locks_whose_owner_is_gone(room: Mailroom) -> None:
    in_child(lambda: str(locks.acquire("orphan", ttl=600)))
    with locks_held("alive"):
        (problem,) = diagnose()
    assert (problem.kind, problem.what, problem.serious) == ("owner gone", "orphan", True)
    assert "a process that is gone" in problem.message
    assert "manage.py locks clear -- orphan" in problem.hint
    assert locks.clear("orphan")
    assert doctor()[1] == 0


def test_a_lock_whose_owner_is_gone_names_the_row_that_is_stuck_behind_it(room: Mailroom) -> None:
    task = room.task(guard=fenced())
    stuck, done = Job.objects.create(status="processing"), Job.objects.create(status="done")
    for job in (stuck, done):
        name = f"job:{job.pk}"
        in_child(lambda name=name: str(locks.try_acquire(name, ttl=600, task=task.name)))  # type: ignore[misc]
    found = {problem.what: problem for problem in diagnose()}
    assert set(found) == {f"job:{stuck.pk}", f"job:{done.pk}"}
    with_row, without = found[f"job:{stuck.pk}"], found[f"job:{done.pk}"]
    assert with_row.message.endswith(f" is gone, and its row app.Job {stuck.pk} is 'processing'")
    clear, requeue_it = (
        f"manage.py locks clear -- job:{stuck.pk}",
        "manage.py locks doctor --requeue",
    )
    assert with_row.hint == (
        f"It ends by itself; or: {clear}; then, if the row is still lost: {requeue_it}"
    )
    assert without.hint == f"It ends by itself; or: manage.py locks clear -- job:{done.pk}"
    # And so it is
    assert locks.clear(f"job:{stuck.pk}")
    assert lost() == {stuck.pk}


def test_an_owner_that_is_gone_is_told_of_also_if_its_row_cannot_be_looked_at(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = room.task(guard=guard())
    job = Job.objects.create(status="processing")
    name = f"job:{job.pk}"
    in_child(lambda: str(locks.try_acquire(name, ttl=600, task=task.name)))

    def silent(guard: StatusGuard, condition: models.Q) -> Any:
        raise DatabaseError("the server has gone away")

    monkeypatch.setattr(claimed_rows, "rows_with", silent)
    (problem,) = diagnose()
    assert problem.hint == f"It ends by itself; or: manage.py locks clear -- {name}"
    said = f"the row of the lock {name}, and of 0 others, cannot be found out"
    assert said in caplog.messages


def test_many_locks_whose_owner_is_gone_are_asked_for_together(
    room: Mailroom,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    django_assert_max_num_queries: Any,
) -> None:
    # Given locks of one process that has ended, and rows that are stuck behind some of them
    monkeypatch.setattr(gone_owners, "LOCKS_PER_LOOK", 40)
    task = room.task(guard=fenced())
    stuck = {
        f"job:{Job.objects.create(status='processing').pk}"
        if number % 3
        else f"job:{Job.objects.create(status='done').pk}": number % 3 > 0
        for number in range(90)
    }
    gone = owner_record(task.name, "id") | {"start": 1}
    for name in [*stuck, *(f"other:{number}" for number in range(30))]:
        locks.store.acquire(name, new_token(), 600, gone)
    fenced_row = Job.objects.create(status="processing", lock_fence=7)
    locks.store.acquire("not-its-name", new_token(), 600, gone)
    info = locks.get("not-its-name")
    assert info is not None
    Job.objects.filter(pk=fenced_row.pk).update(lock_fence=info.fence)
    taken("alive")
    store: Any = locks.store
    asked: list[str] = []
    get = store.get

    def counting(name: str) -> Any:
        asked.append(name)
        return get(name)

    monkeypatch.setattr(store, "get", counting)
    list(problems("owner gone"))  # A server that does not know a script yet is asked twice.
    asked.clear()
    traffic = Traffic(redis_server)

    # When the doctor looks
    with django_assert_max_num_queries(40):
        found = {problem.what: problem for problem in problems("owner gone")}

    # Then each is found, with its row, and none was asked for by itself
    assert set(found) == {*stuck, *(f"other:{number}" for number in range(30)), "not-its-name"}
    for name, is_stuck in stuck.items():
        assert ("and its row app.Job" in found[name].message) == is_stuck, name
    assert f"its row app.Job {fenced_row.pk} " in found["not-its-name"].message
    assert asked == []
    # Without the steps of SCAN, two scripts each: how many there are depends on how many keys other
    # tests have left in this Redis.
    assert traffic.scripts() - 2 * traffic.commands()["scan"] <= 40


def test_a_process_that_released_its_lock_and_ended_is_not_gone_with_it(room: Mailroom) -> None:
    """Short processes come and go between the list of the locks and the look at their owners."""
    for number in range(200):
        taken(f"long:{number}")
    over = threading.Event()
    ended: list[int] = []

    def come_and_go() -> None:
        while not over.is_set():
            in_child(lambda: bool(taken(f"short:{os.getpid()}").release()))
            ended.append(1)

    def look() -> None:
        begun, looks = time.monotonic(), 0
        try:
            while time.monotonic() < begun + 1.5 or min(looks, len(ended)) < 5:
                assert time.monotonic() < begun + LONG, (looks, len(ended))
                assert list(diagnose()) == []
                looks += 1
        finally:
            over.set()

    all_of(look, come_and_go)


def test_keys_without_a_ttl(room: Mailroom) -> None:
    cache.set("lock:for-ever", "somebody's", timeout=None)
    cache.set("lock:for-a-while", "somebody's", timeout=60)
    cache.set("something-else", 1, timeout=None)
    (problem,) = diagnose()
    assert (problem.kind, problem.what, problem.serious) == ("no ttl", "for-ever", True)
    assert doctor()[1] == 1


# ------------------------------------------------------------------------------ the output


class Pieces(io.StringIO):
    """Keeps what was written, and in how many pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []

    def write(self, text: str) -> int:
        self.pieces.append(text)
        return super().write(text)


def test_findings_of_each_kind_are_counted_on_standard_error(room: Mailroom) -> None:
    room.task(guard=fenced())
    room.task(guard=guard(to="working"), lock_name="{job}:{other}")
    Job.objects.create(status="processing")
    Job.objects.create(status="working")
    for number in range(3):
        cache.set(f"lock:for-ever:{number}", 1, timeout=None)
    out, err = Pieces(), Pieces()
    with pytest.raises(CommandError, match=r"^4 problems\.$"):
        call_command("locks", "doctor", stdout=out, stderr=err)
    counted = {line.split("  ")[0]: line.split()[-2:] for line in err.getvalue().splitlines()}
    assert counted == {
        "lost work": ["1", "serious"], "no ttl": ["3", "serious"], "unknown": ["1", "note"],
    }  # fmt: skip
    assert len(out.getvalue().splitlines()) == 1 + 5
    # What is sent again is serious no more, and JSON is for programs.
    err = Pieces()
    with pytest.raises(CommandError):
        call_command("locks", "doctor", "--requeue", stdout=Pieces(), stderr=err)
    assert "lost work  1  note" in err.getvalue()
    err = Pieces()
    with pytest.raises(CommandError):
        call_command("locks", "doctor", "--format", "json", stdout=Pieces(), stderr=err)
    assert err.getvalue() == ""


def test_one_finding_needs_no_count(room: Mailroom) -> None:
    cache.set("lock:for-ever", 1, timeout=None)
    err = Pieces()
    with pytest.raises(CommandError, match=r"^1 problem\.$"):
        call_command("locks", "doctor", stdout=Pieces(), stderr=err)
    assert err.getvalue() == ""


@pytest.mark.parametrize("form", ["table", "json"])
def test_many_findings_are_printed_while_they_are_found(room: Mailroom, form: str) -> None:
    gone = owner_record() | {"start": 1}
    for number in range(450):
        locks.store.acquire(f"gone:{number:03}", new_token(), 600, gone)
    out = Pieces()
    with pytest.raises(CommandError):
        call_command("locks", "doctor", "--format", form, stdout=out, stderr=Pieces())
    first = next(piece for piece in out.pieces if piece)
    assert 199 <= first.count("\n") <= 201
    if form == "json":
        assert len(json.loads(out.getvalue())) == 450
    else:
        assert len(out.getvalue().splitlines()) == 451


# ------------------------------------------------------------------------------ servers


def test_a_server_that_may_lose_locks(
    use_redis: UseRedis, own_redis_server: RedisServer, redis_server: RedisServer
) -> None:
    use_redis(own_redis_server.url)
    raw: Any = redis.Redis.from_url(own_redis_server.url)
    raw.config_set("maxmemory", "100mb")
    raw.config_set("maxmemory-policy", "allkeys-lru")
    (found,), status = doctor_json()
    assert (found["kind"], found["what"], found["serious"], status) == (
        "server", "default", True, 1,
    )  # fmt: skip
    assert "allkeys-lru" in found["message"]
    assert "noeviction" in found["hint"]
    with override_settings(SILENCED_SYSTEM_CHECKS=["django_tasklock.eviction"]):
        assert doctor() == ("Nothing is wrong.\n", 0)
    raw.config_set("maxmemory-policy", "noeviction")
    assert doctor()[1] == 0
    raw.replicaof("127.0.0.1", redis_server.port)
    try:
        assert any("replica" in problem.message for problem in problems("server"))
    finally:
        raw.replicaof("NO", "ONE")
        raw.close()


def test_what_the_system_checks_say_is_a_problem_too(use_caches: UseCaches) -> None:
    backend = "django.core.cache.backends.locmem.LocMemCache"
    use_caches({"default": {"BACKEND": backend, "LOCATION": own_prefix()}}, {"default": {}})
    first, second = diagnose()
    assert (first.kind, first.what, first.serious) == ("settings", "django_tasklock.W001", True)
    assert "LocMemCache" in first.message
    # And it cannot list its locks, which is no error.
    assert (second.kind, second.what, second.serious) == ("server", "default", False)
    assert doctor()[1] == 1
    with override_settings(SILENCED_SYSTEM_CHECKS=["django_tasklock.W001"]):
        assert doctor()[1] == 0


def test_a_store_that_does_not_answer_is_one_problem_among_the_others(
    use_caches: UseCaches, redis_server: RedisServer, own_redis_server: RedisServer
) -> None:
    use_caches(
        {"default": redis_cache(redis_server.url), "dead": redis_cache(own_redis_server.url)},
        {"dead": {"CACHE": "dead"}, "default": {}},
    )
    with mailroom(redis_server.url) as room:
        room.task(guard=fenced(), lock_store="dead", lock_name="dead:{job}")
        room.task(guard=fenced(to="working"))
        Job.objects.create(status="processing")
        job = Job.objects.create(status="working")
        own_redis_server.kill()
        found, status = doctor_json()
        assert {each["kind"]: each["what"] for each in found} == {
            "server": "dead",
            "lost work": f"app.Job {job.pk}",
        }
        assert len(found) == 2
        assert any(each["message"].startswith("does not answer: ") for each in found)
        assert status == 1


def test_work_that_cannot_run_is_said_by_the_checks_and_skipped(room: Mailroom) -> None:
    room.task(name="no-such", guard=StatusGuard(
        "app.NoSuch", pk="job", source="a", to="b", done="c"))  # fmt: skip
    room.task(name="nowhere", guard=fenced(), lock_store="nowhere")
    Job.objects.create(status="processing")
    found = {(problem.kind, problem.what) for problem in diagnose()}
    assert {("settings", "django_tasklock.E003"), ("settings", "django_tasklock.E004")} == found
    until(lambda: doctor()[1] == 1)


def test_a_module_that_cannot_be_imported_is_one_problem_among_the_others(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task's module needs what only its worker has."""

    def load() -> None:
        raise ModuleNotFoundError("No module named 'torch'")

    monkeypatch.setattr(work, "loaders", [load])
    cache.set("lock:foreign", "set by other code", timeout=None)
    found, status = doctor_json()
    assert {each["kind"]: each["serious"] for each in found} == {"unknown": True, "no ttl": True}
    assert "No module named 'torch'" in found[0]["message"]
    assert status == 1
    with pytest.raises(CommandError, match="A module with tasks cannot be imported: No module"):
        call_command("locks", "explain", "videos.process", "[1]")
