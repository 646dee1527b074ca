"""``manage.py locks doctor``: rows, locks, servers. With workers: ``tests/celery_tasks/queue``."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.cache import cache, caches
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connections, models, transaction
from django.test.utils import override_settings

from django_tasklock import locks
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.guards import StatusGuard
from django_tasklock.operators import work
from django_tasklock.operators.doctor import Problem, diagnose
from django_tasklock.operators.gone_owners import gone_owners
from django_tasklock.operators.hints import command_line
from django_tasklock.operators.lock_state import lock_state
from django_tasklock.stores.redis import searching
from tests.app.models import Job
from tests.conftest import UseCaches, UseRedis
from tests.mailroom import Mailroom, mailroom
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, in_child, taken, waiting
from tests.store_cases import own_prefix, redis_cache
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


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


@contextlib.contextmanager
def locks_held(*names: str) -> Iterator[None]:
    leases = [taken(name) for name in names]
    try:
        yield
    finally:
        for lease in leases:
            lease.release()


def test_nothing_is_wrong(room: Mailroom) -> None:
    room.task(guard=fenced())
    Job.objects.create(status="done")
    Job.objects.create(status="queued")
    assert doctor() == ("Nothing is wrong.\n", 0)
    assert doctor_json() == ([], 0)


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
    assert [problem.pk for problem in problems("lost work")] == [stuck.pk]


def test_keys_without_a_ttl(room: Mailroom) -> None:
    cache.set("lock:for-ever", "somebody's", timeout=None)
    cache.set("lock:for-a-while", "somebody's", timeout=60)
    cache.set("something-else", 1, timeout=None)
    (problem,) = diagnose()
    assert (problem.kind, problem.what, problem.serious) == ("no ttl", "for-ever", True)
    assert doctor()[1] == 1


def test_an_owner_that_ended_after_its_lock_was_read_is_not_reported(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock changes hands while it is looked for, and its next holder has ended by the time
    that it is asked whether that lives: whether it has released the lock is not known yet."""
    store: Any = locks.store
    store.acquire("video:1", new_token(), 600, owner_record() | {"start": 1})
    run, described = store.client.run, []

    def between(script: Any, *args: Any, **options: Any) -> Any:
        if script is searching.DESCRIBE_FOUND:
            described.append(script)
            store.clear("video:1")
            if len(described) == 1:
                store.acquire("video:1", new_token(), 600, owner_record() | {"start": 2})
        return run(script, *args, **options)

    monkeypatch.setattr(store.client, "run", between)
    assert list(gone_owners(store)) == []
    assert len(described) == 2


# ------------------------------------------------------------------------------ deadlocks


def test_threads_that_wait_for_each_other_are_named_once(room: Mailroom) -> None:
    def take(held: str, wanted: str, begin: threading.Event) -> bool:
        lease = taken(held, ttl=600)
        assert begin.wait(LONG)
        second = locks.acquire(wanted, ttl=600, wait=300)
        lease.release()
        return second is not None and second.release()

    begin = [threading.Event(), threading.Event()]
    threads = [
        Meanwhile(lambda: take("a", "-b;x", begin[0])),
        Meanwhile(lambda: take("-b;x", "a", begin[1])),
    ]
    until(lambda: locks.count() == 2)
    begin[0].set()
    until(lambda: waiting("-b;x") == 1)
    assert problems("deadlock") == []  # One that waits for the other is no deadlock yet.
    begin[1].set()
    until(lambda: waiting("a") == 1)

    # I expect one finding, whose hint ends it
    (problem,) = problems("deadlock")
    assert "waits for the lock -b;x, held by" in problem.message
    assert "waits for the lock a, held by" in problem.message
    assert problem.command == "manage.py locks clear -- '-b;x'"
    assert locks.clear("-b;x")
    assert all(thread.result() for thread in threads)
    assert problems("deadlock") == []


def test_a_thread_that_waits_for_its_own_lock(room: Mailroom) -> None:
    def twice() -> None:
        taken("a", ttl=600)
        assert locks.acquire("a", ttl=600, wait=300)

    thread = Meanwhile(twice)
    until(lambda: waiting("a") == 1)
    (problem,) = problems("deadlock")
    assert "waits for the lock a, which it holds itself; the lease ends in " in problem.message
    assert "reentrant=True" in problem.hint
    assert locks.clear("a")
    thread.result()


# ------------------------------------------------------------------------------ databases


def test_a_database_that_does_not_answer_hides_its_own_rows_alone(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.task(guard=guard())

    def rows(self: StatusGuard) -> Any:
        raise DatabaseError("the server has gone away")

    monkeypatch.setattr(StatusGuard, "rows", rows)
    cache.set("lock:endless", "a", None)
    found = {problem.kind: str(problem) for problem in diagnose()}
    assert {"unknown", "no ttl"} <= set(found)
    assert "the server has gone away" in found["unknown"]
    # The metrics of the stores are there, and no number of rows
    values = {gauge.name: gauge.values for gauge in lock_state()}
    assert values["tasklock_store_up"] == [({"store": "default"}, 1)]
    assert values["tasklock_lost_rows"] == []


class JobsOnPostgres:
    """Sends the jobs to PostgreSQL."""

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str | None:
        return "postgres" if model is Job else None

    db_for_write = db_for_read


@override_settings(DATABASE_ROUTERS=[JobsOnPostgres()])
def test_an_error_does_not_end_the_transaction_of_a_request(
    room: Mailroom, postgres_alias: str
) -> None:
    # Given a lock whose owner is gone, and whose row is in a database without its table
    gone = owner_record(room.task(guard=guard()).name, "id") | {"start": 1}
    locks.store.acquire("job:1", new_token(), 600, gone)

    for look in (diagnose, lock_state, lambda: gone_owners(locks.store)):
        with transaction.atomic(postgres_alias):
            assert list(look())

            # I expect the transaction to go on
            with connections[postgres_alias].cursor() as cursor:
                cursor.execute("SELECT 1")


# ------------------------------------------------------------------------------ hints


@pytest.mark.slow
def test_a_hint_pasted_into_a_shell_does_what_it_says_whatever_the_names_hold(
    use_caches: UseCaches,
    redis_server: RedisServer,
    process_env: Callable[[], dict[str, str]],
    tmp_path: Path,
) -> None:
    # Given keys with dangerous names that never expire, in a store whose name is one too
    use_caches(
        {"default": redis_cache(redis_server.url), "second": redis_cache(redis_server.url)},
        {"default": {}, "the other;store": {"CACHE": "second"}},
    )
    names = ["--all", "-v", "a;touch${IFS}pwned", "$(touch${IFS}pwned)", "it's", '"', "\\", "*"]
    for name in (*names, "stays"):
        caches["second"].add(f"lock:{name}", 1, timeout=None)
    found = {problem.what: problem for problem in diagnose(["the other;store"])}
    assert set(found) == {*names, "stays"}
    start = "manage.py locks clear --store 'the other;store' -- "
    assert all(problem.command.startswith(start) for problem in found.values())

    # When the commands, as words of one, are run by a shell
    python = shlex.quote(sys.executable)
    words = " ".join(found[name].command.removeprefix(start) for name in names)
    command = f"{python} -m django {start.removeprefix('manage.py ')}{words}"
    done = subprocess.run(
        ["sh", "-c", command], env=process_env(), cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=180,
    )  # fmt: skip

    # I expect these and no others to be cleared, and nothing else to be run
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
    assert [info.name for info in locks.using("the other;store").store.scan()] == ["stays"]


def test_a_command_line_is_one_line_of_words() -> None:
    line = command_line("clear", "a\nb\x1b[2J", "c d", store="s t", options="--dry-run --noinput")
    assert line.isprintable()
    words = shlex.split(line)
    assert words[:7] == ["manage.py", "locks", "clear", "--store", "s t", "--dry-run", "--noinput"]
    assert words[7:] == ["--", r"a\nb\x1b[2J", "c d"]


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
