"""Which lock a call would take and why, and whether it could claim its row now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import CommandError
from django.db.models import Q

from django_tasklock import locks
from django_tasklock.celery import by, limit
from django_tasklock.stores import stores
from tests.app.models import Job
from tests.command import run, run_json
from tests.conftest import UseRedis
from tests.findings import fenced, guard
from tests.inside import owner_record
from tests.mailroom import Mailroom, mailroom
from tests.servers import RedisServer
from tests.steps import held_by, orphan, taken

pytestmark = pytest.mark.django_db
TOO_LARGE = "its fence is larger than any lease's now"


@pytest.fixture
def task(room: Mailroom) -> Any:
    """A task whose lock is ``job:{job}``."""
    return room.task(guard=guard())


def explained(task: Any, arguments: str = "[7]") -> dict[str, Any]:
    """What the command says as JSON."""
    said: dict[str, Any] = run_json("explain", task.name, arguments)
    return said


def made_name(job: int, other: int) -> str:
    return f"made:{job}:{other}"


@pytest.mark.parametrize("arguments", ["[7]", '{"job": 7}', '{"job": 7, "other": null}'])
def test_explain_a_free_lock(task: Any, arguments: str) -> None:
    # Given a call whose lock nobody holds, and a row that does not exist
    said = run("explain", task.name, arguments)

    # I expect to be told first what a call would meet now
    failed = "Would be skipped: a claim of app.Job 7 would fail (does not exist)."
    assert said.startswith(f"{failed}\ntask:      {task.name}\nname:      job:7\nwhy:       ")

    # And then all that this follows from
    assert "\narguments: job=7, other=None\n" in said
    assert said.endswith("\nrow now:   does not exist: no run could claim it\n")


@pytest.mark.parametrize(
    ("lock_name", "name", "why"),
    [
        ("job:{job}", "job:7", "lock_name is 'job:{job}', "),
        (by("job"), "{task}:7", "lock_name is by('job'), "),
        (made_name, "made:7:2", "lock_name is made_name, "),
        (None, "{task}:", "its own name and a digest of "),
    ],
    ids=["template", "by", "function", "none"],
)
def test_explain_which_lock_and_why(room: Mailroom, lock_name: Any, name: str, why: str) -> None:
    task = room.task(lock_name=lock_name)
    said = explained(task, "[7, 2]")
    assert said["name"] == task.lock_name_of((7, 2), {})
    assert said["name"].startswith(name.format(task=task.name))
    assert why in said["why"]


def test_an_error_of_the_projects_function_is_not_one_of_the_output(room: Mailroom) -> None:
    def name(job: int, other: Any) -> str:
        return Path("/no/such").read_text()

    with pytest.raises(FileNotFoundError):
        explained(room.task(lock_name=name))


@pytest.mark.parametrize(
    ("option", "value", "verdict"),
    [
        ("on_conflict", "retry", "Would be requeued, to try again later: job:7 is held."),
        ("on_conflict", "coalesce", "Would be done by a follow-up run: job:7 is held."),
        ("on_conflict", "run", "Would run all the same, and report it: job:7 is held."),
        ("on_conflict", made_name, "Would do what made_name says: job:7 is held."),
        ("lock_wait", 5, "Would wait up to 5s, then be skipped: job:7 is held."),
        ("unique_while", "queued", "Would be skipped: job:7 is held."),
        ("debounce", 30, "Would be requeued, to try again later: job:7 is held."),
    ],
)
def test_explain_a_conflict(task: Any, option: str, value: Any, verdict: str) -> None:
    setattr(type(task), option, value)
    taken("job:7")
    said = explained(task)
    shown = getattr(value, "__name__", value)
    options = {"lock_name": "job:{job}", "guard": repr(task.guard), option: shown}
    assert (said["verdict"], said["options"]) == (verdict, options)
    assert "\nlock now:  Held by " in run("explain", task.name, "[7]")


def test_explain_of_which_message_it_is_a_duplicate(room: Mailroom) -> None:
    task = room.task(unique_while="queued", unique_name="{other}:{job}")
    waits = task.delay(7, other="new")
    said = explained(task, '[7, "new"]')
    assert (said["name"], said["unique_name"]) == ("job:7", "new:7")
    assert said["duplicate_of"] == waits.id
    clear = "manage.py locks clear --queued -- new:7"
    assert said["verdict"].endswith(clear)
    assert explained(task, '[7, "old"]')["duplicate_of"] is None
    run("clear", "--queued", "--noinput", "new:7")
    assert explained(task, '[7, "new"]')["duplicate_of"] is None


def test_explain_who_holds_it(task: Any) -> None:
    orphan("job:7")
    gone = "job:7 is held by a process that is gone. A call on "
    assert explained(task)["verdict"].startswith(f"Would be skipped: {gone}")
    type(task).lock_wait = None
    assert explained(task)["verdict"].startswith(f"Would wait for as long as it takes: {gone}")
    type(task).lock_wait = 0
    locks.clear("job:7")
    assert locks.hold("job:7", 600)
    type(task).lock_wait = None
    paused = "Would be requeued until the hold ends: job:7 is held by an operator."
    for type(task).on_conflict in ("skip", "run"):
        assert explained(task)["verdict"] == paused


def test_explain_says_the_store_and_the_key_and_whether_it_grants_a_lock(
    use_redis: UseRedis, own_redis_server: RedisServer
) -> None:
    use_redis(own_redis_server.url, tasklock={"KEY_PREFIX": "other"})
    with mailroom(own_redis_server.url) as room:
        task = room.task()
        said = explained(task)
        assert said["verdict"] == "Would run now: nobody holds job:7."
        assert (said["store"], said["key"].split(":", 1)[1]) == ("default", "1:other:job:7")
        with redis.Redis.from_url(own_redis_server.url) as admin:
            admin.config_set("maxmemory", 1)
            full = explained(task)["verdict"]
            assert full.startswith("Would get no lock: the store grants none: the server is full: ")
            admin.config_set("maxmemory", 0)
            admin.replicaof("127.0.0.1", 1)
            assert "the server is a replica: point the" in explained(task)["verdict"]
            admin.replicaof("NO", "ONE")
            admin.config_set("requirepass", "secret")
            stores["default"].close_idle()
            wrong = explained(task)["verdict"]
            admin.config_set("requirepass", "")
        assert wrong.startswith("Not known: ")
        assert "the server refuses the user or password in the cache's LOCATION: " in wrong


def test_explain_what_cannot_be(task: Any, caplog: pytest.LogCaptureFixture) -> None:
    for arguments, reason in (
        ("[]", "cannot be called like that"),
        ('{"nothing": 1}', "cannot be called like that"),
        ('["' + "x" * 300 + '"]', "cannot be called like that"),
        ("{", "must be a JSON array or object"),
        ("7", "must be a JSON array or object"),
    ):
        with pytest.raises(CommandError, match=reason):
            run("explain", task.name, arguments)
    with pytest.raises(CommandError, match=r"No task no\.such\.task takes a lock"):
        run("explain", "no.such.task")
    said = explained(task, '["x"]')
    assert said["row"] == "not known: Field 'id' expected a number but got 'x'."
    assert said["verdict"] == "Would get the lock now (its row is not known): nobody holds job:x."
    assert run("explain", task.name, '["x"]', "--store=default").startswith(said["verdict"])
    with pytest.raises(CommandError, match="The task's store is 'default': leave out --store"):
        run("explain", task.name, '["x"]', "--store=other")
    assert not caplog.records  # It is a mistake of who typed it.


def test_explain_slots_and_a_duplicate(room: Mailroom) -> None:
    """Who holds the name itself keeps others from its permits, and not the other way round."""
    task, alone = room.task(lock_slots=2, unique_while="queued"), room.task()
    assert locks.hold("job:7", 600, "alice")
    paused = "Would be requeued until the hold ends: job:7 is held by operator alice."
    assert (explained(task)["verdict"], explained(task)["row"]) == (paused, None)
    assert locks.clear("job:7")
    free = "Would run now: 0 of 2 permits of job:7 are held."
    assert explained(task)["verdict"] == free
    taken("job:7", slots=2)
    said = explained(task)
    assert said["verdict"] == "Would run now: 1 of 2 permits of job:7 are held."
    assert [permit["slot"] for permit in said["held"]] == [1]
    assert explained(alone)["verdict"] == "Would run now: nobody holds job:7."
    sent = task.delay(7).id
    said = explained(task)
    assert said["duplicate_of"] == sent
    assert said["verdict"].startswith(f"Would not be sent: the message {sent} is queued for ")


def test_explain_permits_beyond_those_that_a_call_may_take(room: Mailroom) -> None:
    # Given permits of callers with a larger N, and those that a call with N=2 takes are free
    for lease in [taken("job:7", slots=4) for _ in range(4)][:2]:
        lease.release()

    # I expect them to keep no call from its lock
    free = "Would run now: 0 of 2 permits of job:7 are held."
    assert explained(room.task(lock_slots=2))["verdict"] == free


def test_explain_a_debounced_call(room: Mailroom) -> None:
    said = explained(room.task(debounce=30))
    assert said["verdict"] == "Would run in 30s: nobody holds job:7."


def test_explain_a_holder_that_only_a_later_version_knows(task: Any) -> None:
    # Given a lock in a later form: its message would come back, whatever on_conflict says
    held_by({"format": 2, **owner_record()}, "job:7")
    later = "Would be requeued: job:7 is held in a form that this version does not know."
    for type(task).on_conflict in ("skip", "run"):
        assert explained(task)["verdict"] == later


def test_explain_a_full_limit(room: Mailroom) -> None:
    limits = [limit("tenant:{other}", 2), limit("partner", 1)]
    task = room.task(lock_limits=limits, on_conflict="raise")

    def verdict() -> str:
        return str(explained(task, "[7, 5]")["verdict"])

    # Given other code with permits, of which a call needs one of the first two
    permits = [taken("tenant:5", slots=3) for _ in range(3)]
    assert permits[1].release()
    assert verdict() == "Would run now: nobody holds job:7."
    assert explained(task, "[7, 5]")["limits"] == {"tenant:5": 2, "partner": 1}
    assert "\nlimits:    tenant:5=2, partner=1\n" in run("explain", task.name, "[7, 5]")

    # I expect to be told of the limit that is full
    taken("tenant:5", slots=3)
    assert verdict() == "Would be requeued: 2 of 2 permits of tenant:5 are held."
    locks.clear("tenant:5#2")
    taken("partner", hold_at_least=600).release()
    assert verdict() == "Would be requeued: partner is held for a while: it is cooling."
    assert locks.hold("tenant:5", 600)
    assert verdict() == "Would be requeued: tenant:5 is held by an operator."

    # But first of the lock
    taken("job:7")
    assert verdict() == "Would be ended by LockNotAcquired: job:7 is held."


@pytest.mark.parametrize(
    ("row", "refused"),
    [
        ({"status": "queued"}, None),
        ({"status": "failed"}, "not in source"),
        ({"done_count": 1}, "filtered out"),
        ({"result_file": "a"}, "excluded"),
        ({"lock_fence": 10**16}, TOO_LARGE),
        # What turns a fresh row away does not matter to one that was claimed before
        ({"status": "processing", "done_count": 1, "result_file": "a", "lock_fence": 5}, None),
        ({"status": "processing", "lock_fence": 10**16}, TOO_LARGE),
        ({"status": "processing", "lock_fence": 0}, None),
        ({"status": "processing", "lock_fence": -5}, "a run without the lock has claimed it"),
        ({"status": "queued", "lock_fence": -5}, None),
    ],
)
def test_what_explain_says_of_the_row_is_what_a_claim_does(
    room: Mailroom, row: dict[str, Any], refused: str | None
) -> None:
    choices = fenced(filter=Q(done_count=0), exclude=Q(result_file__isnull=False))
    task, job = room.task(guard=choices), Job.objects.create(**row)
    claimed = job.status == "processing"
    assert explained(task, f"[{job.pk}]")["row"] == {
        "row": f"app.Job {job.pk}", "status": job.status, "claimed": claimed, "refused": refused,
    }  # fmt: skip
    could = "a run that gets the lock could claim it"
    line = f"'{job.status}': " + (f"no run could claim it: {refused}" if refused else could)
    assert f"row now:   {line}\n" in run("explain", task.name, f"[{job.pk}]")
    assert task.guard.claim(job.pk, taken(f"job:{job.pk}").fence) is (refused is None)
