"""Reservations of the queue (``unique_while``): listed, explained and cleared."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command

from django_tasklock import ListingNotSupported, locks
from django_tasklock.celery import messages
from django_tasklock.cli import list_queued
from django_tasklock.operators import doctor
from django_tasklock.operators.clearing import Outcome
from django_tasklock.operators.doctor import diagnose
from django_tasklock.operators.reservations import clear_job, key_of, queued_jobs
from django_tasklock.stores import stores
from django_tasklock.stores.redis.store import RedisStore
from tests.cli.test_command import answering, run
from tests.conftest import UseRedis
from tests.mailroom import Mailroom, mailroom
from tests.servers import RedisServer
from tests.waiting import until


@pytest.fixture
def store(use_redis: UseRedis) -> RedisStore:
    use_redis()
    store = stores["default"]
    assert isinstance(store, RedisStore)
    return store


@pytest.fixture
def server(store: RedisStore, redis_server: RedisServer) -> Any:
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


def reserve(store: Any, name: str, task: str = "videos.tasks.process", ttl: float = 600) -> str:
    task_id = f"id-of-{name}"
    assert store.reserve(key_of(task, name), task_id, ttl) is None
    return task_id


# ------------------------------------------------------------------------------ in the store


def test_jobs_are_found_by_name_and_task(store: RedisStore) -> None:
    reserve(store, "video:1")
    reserve(store, "video:2", ttl=300)
    reserve(store, "report", task="a task of reports", ttl=900)
    assert [job.name for job in queued_jobs(store)] == ["video:2", "video:1", "report"]
    assert [job.name for job in queued_jobs(store, limit=1)] == ["video:2"]
    assert [job.name for job in queued_jobs(store, "video:")] == ["video:2", "video:1"]
    (job,) = queued_jobs(store, task="a*reports")
    assert (job.task, job.name, job.task_id) == ("a task of reports", "report", "id-of-report")
    assert job.ttl is not None
    assert 890 < job.ttl <= 900


def test_more_jobs_than_one_script_looks_at(store: RedisStore, server: Any) -> None:
    """And those among them whose keys were deleted by hand."""
    for number in range(2500):
        reserve(store, f"job:{number:04}", ttl=600 + number)
    for number in range(0, 2500, 5):
        server.delete(store.keyspace.note_key(key_of("videos.tasks.process", f"job:{number:04}")))
    expected = [f"job:{number:04}" for number in range(2500) if number % 5]
    assert [job.name for job in queued_jobs(store)] == expected
    assert server.zcard(store.keyspace.reserved) == 2000


def test_nothing_is_left_of_what_has_ended(store: RedisStore, server: Any) -> None:
    """By themselves, or by the message's start: neither a member of the index nor the index."""
    for number in range(6):
        reserve(store, f"short:{number}", ttl=0.05)
    task_id = reserve(store, "long", ttl=8)
    assert server.pttl(store.keyspace.reserved) > 0
    until(lambda: store.get_note(key_of("videos.tasks.process", "short:5")) is None)
    for number in range(3):
        reserve(store, f"next:{number}", ttl=8)
    assert server.zcard(store.keyspace.reserved) == 4
    store.unreserve(key_of("videos.tasks.process", "long"), task_id)
    assert server.zcard(store.keyspace.reserved) == 3
    assert 8000 < server.pttl(store.keyspace.reserved) <= 16_000


def test_the_index_outlives_its_longest_reservation(store: RedisStore, server: Any) -> None:
    for number, ttl in enumerate((60, 6000, 1, 600)):
        reserve(store, f"job:{number}", ttl=ttl)
        assert server.pttl(store.keyspace.reserved) >= server.pttl(
            store.keyspace.note_key(key_of("videos.tasks.process", f"job:{number}"))
        )
    assert server.ttl(store.keyspace.reserved) > 5990


def test_what_strangers_wrote_is_no_error(store: RedisStore, server: Any) -> None:
    task_id = reserve(store, "video:1")
    soon = 9e15
    strange: list[Any] = [
        b"\xff\xfe", b"queued \xff", "queued", "queued ", "queued x", "queued  y", "queued task ",
        "queued task na\x1bme", f"queued {'x' * 10**6} {'y' * 10**6}", "queued a list",
        "queued task \ud83d".encode("utf-8", "surrogatepass"),
    ]  # fmt: skip
    server.zadd(store.keyspace.reserved, dict.fromkeys(strange, soon))
    for name in ("a-list", "odd", "long"):
        server.zadd(store.keyspace.reserved, {key_of("task", name): soon})
    server.rpush(store.keyspace.note_key(key_of("task", "a-list")), "x")
    server.set(store.keyspace.note_key(key_of("task", "odd")), b"\xff\x1b[2J")
    server.set(store.keyspace.note_key(key_of("task", "long")), b"x" * 10**6)

    found = {job.name: job for job in queued_jobs(store)}

    assert set(found) == {"video:1", "odd", "long"}
    assert found["video:1"].task_id == task_id
    assert found["odd"].ttl is None
    assert len(found["long"].task_id) == 1024
    assert isinstance(store.reserve(key_of("task", "odd"), "another", 60), str)
    assert store.get_note(key_of("task", "odd")) == "\\xff\x1b[2J"
    assert clear_job(found["odd"], by="a test") is Outcome.CLEARED
    assert clear_job(found["long"], by="a test") is Outcome.CHANGED_HANDS


def test_of_a_cache_that_cannot_list(on_locmem: None) -> None:
    store = stores["default"]
    reserve(store, "video:1")
    with pytest.raises(ListingNotSupported):
        queued_jobs(store)


def test_only_the_reservation_that_was_seen_is_cleared(
    store: RedisStore, caplog: pytest.LogCaptureFixture
) -> None:
    reserve(store, "video:1")
    (seen,) = queued_jobs(store)
    key = key_of(seen.task, seen.name)
    assert store.reserve(key, "the next", 60, over=seen.task_id) is None
    assert clear_job(seen, by="a test") is Outcome.CHANGED_HANDS
    (now,) = queued_jobs(store)
    with caplog.at_level(logging.WARNING, "django_tasklock"):
        assert clear_job(now, by="a\ntest") is Outcome.CLEARED
    assert clear_job(now, by="a test") is Outcome.NOT_LOCKED
    (record,) = caplog.records
    assert record.getMessage() == (
        "the reservation of the job video:1 in store default for the task "
        "videos.tasks.process[the next] was cleared by a\\ntest"
    )
    assert record.lock_task_id == "the next"  # type: ignore[attr-defined]
    assert queued_jobs(store) == []


# ------------------------------------------------------------------------------ the command


@pytest.fixture
def some(store: RedisStore) -> None:
    reserve(store, "video:1", ttl=600.9)
    reserve(store, "video:2", ttl=300.9)
    reserve(store, "report", task="reports.daily", ttl=7200.9)
    reserve(store, "report", task="reports.weekly", ttl=7260.9)


def names(*options: str) -> list[str]:
    rows = json.loads(run("list", "--queued", "--format", "json", *options))
    return [row["name"] for row in rows]


def test_list_queued(some: None) -> None:
    assert run("list") == "No locks.\n"
    assert [line.split() for line in run("list", "--queued").splitlines()] == [
        ["NAME", "TTL", "TASK", "TASK", "ID"],
        ["video:2", "5m00s", "videos.tasks.process", "id-of-video:2"],
        ["video:1", "10m00s", "videos.tasks.process", "id-of-video:1"],
        ["report", "2h00m", "reports.daily", "id-of-report"],
        ["report", "2h01m", "reports.weekly", "id-of-report"],
    ]


def test_list_queued_narrowed_and_sorted(some: None) -> None:
    assert names("video:") == ["video:2", "video:1"]
    assert names("--task", "reports.*") == ["report", "report"]
    assert names("--expiring", "400") == ["video:2"]
    assert names("--limit", "2") == ["video:2", "video:1"]
    assert names("--sort", "-ttl", "--limit", "1", "--task", "reports.*") == ["report"]
    assert names("--sort", "name") == ["report", "report", "video:1", "video:2"]
    for wrong in (["--owner", "host"], ["--scan"], ["--sort", "age"]):
        with pytest.raises(CommandError):
            names(*wrong)


def test_list_queued_as_json_and_csv(some: None) -> None:
    (row,) = json.loads(run("list", "video:1", "--queued", "--format", "json"))
    left = row.pop("ttl")
    assert 500 < left <= 600.9
    assert row == {
        "name": "video:1",
        "task": "videos.tasks.process",
        "task_id": "id-of-video:1",
        "store": "default",
    }
    header, line = run("list", "video:1", "--queued", "--format", "csv").splitlines()
    assert header == "name,ttl,task,task_id,store"
    name, ttl, _ = line.split(",", 2)
    assert name == "video:1"
    assert 500 < float(ttl) <= left
    assert line.endswith(",videos.tasks.process,id-of-video:1,default")


def test_list_queued_of_a_store_that_cannot_list(on_locmem: None) -> None:
    with pytest.raises(CommandError, match="cannot list its reservations"):
        run("list", "--queued")


def test_clear_queued_by_name(some: None, store: RedisStore) -> None:
    """A name is that of every task with such a lock; locks of that name are not touched."""
    locks.acquire("report", ttl=60)
    assert run("clear", "--queued", "video:1", "report").splitlines() == [
        "cleared video:1, reserved for task videos.tasks.process[id-of-video:1]",
        "cleared report, reserved for task reports.daily[id-of-report]",
        "cleared report, reserved for task reports.weekly[id-of-report]",
    ]
    assert names() == ["video:2"]
    assert locks.is_locked("report")
    with pytest.raises(CommandError, match=r"^video:1 is not reserved in the queue\.$"):
        run("clear", "--queued", "video:1")


def test_clear_queued_by_task_prefix_or_all(some: None, store: RedisStore) -> None:
    assert "would clear report" in run("clear", "--queued", "--all", "--dry-run")
    assert len(names()) == 4
    run("clear", "--queued", "--task", "reports.d*", "--noinput")
    assert names() == ["video:2", "video:1", "report"]
    run("clear", "--queued", "--prefix", "video:", "--noinput")
    assert names() == ["report"]
    (row,) = json.loads(run("clear", "--queued", "--all", "--noinput", "--format", "json"))
    assert (row["name"], row["outcome"]) == ("report", "cleared")
    assert (row["was"]["task"], row["was"]["task_id"]) == ("reports.weekly", "id-of-report")
    assert run("clear", "--queued", "--all") == "No reservations.\n"
    for wrong in ([], ["--owner-gone"], ["--all", "--task", "x"], ["--prefix", ""]):
        with pytest.raises(CommandError):
            run("clear", "--queued", *wrong)


def test_clear_queued_asks_and_leaves_what_changed_meanwhile(
    some: None, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, "n")
    with pytest.raises(CommandError, match="Nothing was cleared"):
        run("clear", "--queued", "--prefix", "video:")
    key = key_of("videos.tasks.process", "video:1")
    answering(monkeypatch, "y", lambda: store.reserve(key, "the next", 60, over="id-of-video:1"))
    with pytest.raises(CommandError, match=r"^video:1 changed hands meanwhile, left alone\.$"):
        run("clear", "--queued", "--prefix", "video:")
    assert store.get_note(key) == "the next"
    assert sorted(names()) == ["report", "report", "video:1"]


def test_clear_queued_that_is_interrupted_says_what_was_cleared(
    some: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def clear(job: Any, *, by: str) -> Outcome:
        if job.name == "video:1":
            raise KeyboardInterrupt
        return clear_job(job, by=by)

    monkeypatch.setattr(list_queued, "clear_job", clear)
    with pytest.raises(CommandError, match="which others were cleared is not known") as ended:
        call_command("locks", "clear", "--queued", "--prefix", "video:", "--noinput")
    assert ended.value.returncode == 130
    assert capsys.readouterr().out.startswith("cleared video:2, reserved for task ")
    assert names() == ["video:1", "report", "report"]


# ------------------------------------------------------------------------------ explain


@pytest.fixture
def room(store: RedisStore, redis_server: RedisServer) -> Iterator[Mailroom]:
    with mailroom(redis_server.url) as room:
        yield room


def explained(task: Any, *options: str) -> dict[str, str]:
    lines = run("explain", task.name, "[1]", *options).splitlines()
    return {label: value.strip() for label, _, value in (line.partition(":") for line in lines)}


def test_explain_says_which_message_a_call_would_be_a_duplicate_of(room: Mailroom) -> None:
    task = room.task(unique_while="queued", unique_for=7200)
    said = explained(task)
    assert said["unique"] == "until it starts, waiting 2h00m at most"
    assert said["duplicate"] == "no, a call would be sent"
    first = task.delay(1)
    room.redis.delete(room.queue)  # as `celery purge` does
    assert task.delay(1).id == first.id
    assert explained(task)["duplicate"] == (
        f"yes, the queue is reserved for the message {first.id}: a call returns that one's result. "
        "If that message is gone: manage.py locks clear --queued -- job:1"
    )
    found = json.loads(run("explain", task.name, "[1]", "--format", "json"))
    assert (found["unique_while"], found["unique_for"]) == ("queued", 7200)
    assert (found["on_duplicate"], found["duplicate_of"]) == ("return", first.id)

    run("clear", "--queued", "job:1")

    assert explained(task)["duplicate"] == "no, a call would be sent"
    second = task.delay(1)
    assert second.id != first.id
    assert room.ids() == [second.id]


def test_explain_says_which_run_a_call_would_be_a_duplicate_of(room: Mailroom) -> None:
    seen: list[dict[str, str]] = []

    def work(self: Any, job: Any) -> None:
        seen.append(explained(self))
        seen.append(json.loads(run("explain", self.name, "[1]", "--format", "json")))

    task = room.task(work, unique_while="unfinished", on_duplicate="raise")
    first = task.delay(1)
    room.deliver(room.take())
    assert seen[0]["duplicate"] == (
        f"yes, of the run {first.id}, which holds the lock: a call raises AlreadyQueued"
    )
    assert seen[1]["duplicate_of"] == first.id
    assert explained(task)["duplicate"] == "no, a call would be sent"


def test_explain_counts_a_revoked_message_as_none_as_a_call_does(room: Mailroom) -> None:
    task = room.task(unique_while="queued")
    first = task.delay(1)
    task.backend.store_result(first.id, None, "REVOKED")
    assert explained(task)["duplicate"] == "no, a call would be sent"
    assert task.delay(1).id != first.id


def test_explain_of_a_task_whose_calls_all_count(room: Mailroom) -> None:
    task = room.task()
    assert not {"unique", "duplicate"} & set(explained(task))
    found = json.loads(run("explain", task.name, "[1]", "--format", "json"))
    assert (found["unique_while"], found["duplicate_of"]) == (None, None)


# ------------------------------------------------------------------------------ doctor


def without_messages() -> list[str]:
    return [problem.what for problem in diagnose() if problem.kind == "no message"]


@pytest.fixture
def apart(store: RedisStore, own_redis_server: RedisServer) -> Iterator[Mailroom]:
    """A broker of its own, that holds nothing else."""
    with mailroom(own_redis_server.url) as room:
        yield room


@pytest.mark.django_db
def test_doctor_says_that_there_are_more_than_it_looks_at(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "MAX_RESERVATIONS", 2)
    for number in range(3):
        assert without_messages() == []
        reserve(store, f"job:{number}")
    (problem,) = [problem for problem in diagnose() if problem.kind == "no message"]
    assert (problem.what, problem.serious) == ("default", False)
    assert "the 2 that end first were looked at, and there are more" in problem.message


@pytest.mark.django_db
def test_doctor_finds_reservations_whose_message_is_gone(apart: Mailroom) -> None:
    """And not those that wait, in whichever queue, or that a worker has taken."""
    task = apart.task(unique_while="queued")
    for job in range(4):
        task.delay(job)
    task.apply_async([4], queue="another-queue")
    task.apply_async([5], priority=9, countdown=600)
    assert without_messages() == []
    apart.take()
    with apart.app.connection_for_read() as connection:
        consumer = connection.channel()
        queue = apart.app.amqp.queues[apart.queue](consumer)
        assert queue.get() is not None  # Taken and not acknowledged.
        assert without_messages() == ["job:0"]
        (problem,) = [problem for problem in diagnose() if problem.kind == "no message"]
        assert problem.command == "manage.py locks clear --queued -- job:0"
        assert not problem.serious
    run("clear", "--queued", "job:0")
    assert without_messages() == []


@pytest.mark.django_db
def test_doctor_says_nothing_where_it_is_not_known(
    apart: Mailroom, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve(store, "of-nobody", task="a.task.of.another.project")
    task = apart.task(unique_while="queued")
    task.delay(1)
    apart.take()
    task.delay(2)
    assert without_messages() == ["job:1"]
    with monkeypatch.context() as patch:
        patch.setattr(messages, "MOST_MESSAGES", 0)
        assert without_messages() == []
    with monkeypatch.context() as patch:
        patch.setattr(messages, "MOST_KEYS", 0)
        assert without_messages() == []
    apart.app.conf.update(broker_read_url="redis://127.0.0.1:1")
    assert without_messages() == []
    apart.app.conf.update(broker_write_url="redis://127.0.0.1:1")
    assert without_messages() == []
    apart.app.conf.update(broker_read_url="memory://")
    assert without_messages() == []
    apart.app.conf.update(broker_write_url="memory://")
    assert without_messages() == []
