"""``manage.py locks doctor``: rows, locks, servers. With workers: ``tests/hard_cases``."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import states
from django.core.checks import WARNING
from django.core.management import CommandError, call_command
from django.db import connections, models, transaction
from django.test.utils import override_settings

from django_tasklock import lock, locks
from django_tasklock.guards import StatusGuard
from django_tasklock.stores import stores
from tests.app.models import Job
from tests.command import doctor, doctor_json
from tests.conftest import UseCaches, UseRedis
from tests.findings import fenced, guard, lost, thrown_away
from tests.inside import (
    asked,
    diagnose,
    look_at_most,
    new_token,
    operators,
    owner_record,
    queue_of_calls,
    reserved_key,
    seek_messages_for,
    when_messages_are_sought,
)
from tests.mailroom import Mailroom, mailroom
from tests.pages import found as checked
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import LONG, held_by, holder, in_child, orphan
from tests.store_cases import own_prefix, redis_cache

pytestmark = pytest.mark.django_db(transaction=True)
WELL = ("Nothing is wrong.\n", 0)


# ------------------------------------------------------------------------------ locks


def test_a_lock_whose_owner_is_gone_names_the_row_that_is_stuck_behind_it(room: Mailroom) -> None:
    # Given two locks whose processes have died: the row of one is left claimed
    task = room.task(guard=fenced())
    stuck, done = Job.objects.create(status="processing"), Job.objects.create(status="done")
    for job in (stuck, done):
        name = f"job:{job.pk}"
        in_child(lambda name=name: str(asked(name, ttl=600, task=task.name)))  # type: ignore[misc]

    # I expect both to be found, and how to end them
    found = {problem.what: problem for problem in diagnose()}
    assert set(found) == {f"job:{stuck.pk}", f"job:{done.pk}"}
    with_row, without = found[f"job:{stuck.pk}"], found[f"job:{done.pk}"]
    assert with_row.message.endswith(f" is gone, and its row app.Job {stuck.pk} is “processing”.")
    assert without.message.endswith(", a process that is gone.")
    clear = f"manage.py locks clear -- job:{done.pk}"
    assert (without.serious, without.hint) == (True, f"It ends by itself. To end it now: {clear}")
    for problem, model, pk in ((with_row, "app.Job", str(stuck.pk)), (without, None, None)):
        assert problem.as_json() == {
            "kind": "owner gone", "what": problem.what, "message": problem.message,
            "hint": problem.hint, "serious": True, "task": task.name, "store": "default",
            "lock": problem.what, "model": model, "pk": pk,
        }  # fmt: skip

    # And the row to be lost work when the lock is cleared
    assert locks.clear(f"job:{stuck.pk}")
    assert lost() == {stuck.pk}

    # Where the lock's name does not say the row, its fence does
    held_by(owner_record(task.name, "id") | {"start": 1}, "elsewhere")
    Job.objects.filter(pk=stuck.pk).update(lock_fence=holder("elsewhere").fence)
    assert str(stuck.pk) in [str(each.pk) for each in diagnose() if each.kind == "owner gone"]


def test_of_many_problems_the_first_of_each_kind_are_shown_with_how_many_there_are(
    room: Mailroom,
) -> None:
    """A mail is read if it is short."""
    room.task(guard=fenced())
    Job.objects.bulk_create(Job(status="processing") for _ in range(40))
    orphan("gone:1")
    said, status = doctor()
    lines = said.splitlines()
    assert lines[:2] == ["1 owner gone", "40 lost work"]
    assert lines[-1] == "35 more: -v 2 shows all."
    assert "owner gone: gone:1" in lines
    assert (len(lines) <= 30, status) == (True, 1)
    assert doctor("-v", "2")[0].count("lost work: ") == 40
    assert len(doctor_json()[0]) == 41
    # And what became of them
    assert doctor("--requeue")[0].startswith("1 owner gone\n40 lost work (note)\n")


def test_an_owner_that_ended_after_its_lock_was_read_is_not_reported(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have released the lock, which has another holder now."""
    store: Any = locks.store
    held_by(owner_record() | {"start": 1}, "video:1")
    read = list(store.walk())
    store.clear("video:1")
    with lock("video:1"):
        monkeypatch.setattr(store, "walk", lambda: iter(read))
        assert diagnose() == []


def test_a_renewal_that_is_missed_is_a_note_until_it_is_made(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host may have died, and then it says so before the lock ends."""
    store, hours = locks.store, 6 * 3600.0
    late = owner_record("videos.process") | {"host": "worker-9", "ttl": hours, "renew": True}
    token = held_by(late, "video:1", ttl=hours / 2)
    said, status = doctor()
    assert said.startswith("overdue (note): video:1\n")
    assert "not renewed for 3h00m (due every 2h00m), ends in " in said
    assert status == 0
    # Also one that was made after its lock was read
    read = list(store.walk())
    store.extend("video:1", token, hours)
    assert doctor() == WELL
    monkeypatch.setattr(store, "walk", lambda: iter(read))
    assert doctor() == WELL


class WritesJobsToPostgres:
    """As with a replica, the rows are read elsewhere; a guard asks where they are written."""

    def db_for_write(self, model: type[models.Model], **hints: Any) -> str | None:
        return "postgres" if model is Job else None


@override_settings(DATABASE_ROUTERS=[WritesJobsToPostgres()])
def test_an_error_of_a_database_hides_its_own_rows_alone_and_ends_no_transaction(
    room: Mailroom, postgres_alias: str
) -> None:
    # Given a lock whose owner is gone, and whose row is in a database without its table
    held_by(owner_record(room.task(guard=guard()).name, "id") | {"start": 1}, "job:1")

    with transaction.atomic(postgres_alias):
        unknown, owner_gone = diagnose()
        assert (unknown.kind, owner_gone.kind) == ("unknown", "owner gone")
        assert 'relation "app_job" does not exist' in unknown.message

        # I expect the transaction to go on
        with connections[postgres_alias].cursor() as cursor:
            cursor.execute("SELECT 1")


def test_a_hint_can_be_pasted_into_a_shell_whatever_names_hold(
    use_caches: UseCaches, redis_server: RedisServer
) -> None:
    use_caches(
        {"default": redis_cache(redis_server.url), "second": redis_cache(redis_server.url)},
        {"default": {}, "the other;store": {"CACHE": "second"}},
    )
    store = stores["the other;store"]
    names = {"--all", "-v", "a;touch${IFS}pwned", "$(touch${IFS}pwned)", "it's", '"', "\\", "*"}
    for name in (*names, "stays"):
        store.acquire([name], new_token(), LONG, owner_record() | {"start": 1})
    problems = {problem.what: problem for problem in diagnose(["the other;store"])}
    assert set(problems) == {*names, "stays"}
    found = {what: problem.hint for what, problem in problems.items()}
    assert {(each.kind, each.serious) for each in problems.values()} == {("owner gone", True)}
    said = {"task": None, "store": "the other;store", "lock": "stays", "model": None, "pk": None}
    assert said.items() <= problems["stays"].as_json().items()
    assert doctor()[1] == 1
    for name in names:
        command = found[name].removeprefix("It ends by itself. To end it now: manage.py ")
        call_command(*shlex.split(command), interactive=False, stdout=io.StringIO())
    assert [info.name for info in store.page()] == ["stays"]
    line = operators("holders").command_line("clear", "a\nb\x1b[2J", "c d")
    assert line.isprintable()
    assert shlex.split(line)[3:] == ["--", r"a\nb\x1b[2J", "c d"]


# ------------------------------------------------------------------------------ reservations


def test_a_reservation_whose_message_has_ended_is_said_with_how_to_end_it(room: Mailroom) -> None:
    task = room.task(unique_while="queued", lock_name="two;words:{job}")
    sent = task.delay(1).id
    thrown_away(room, sent)
    (problem,) = diagnose()
    assert (problem.kind, problem.what, problem.serious) == ("reservation", "two;words:1", False)
    assert f"{task.name}[{sent}], which has ended." in problem.message
    command = problem.hint.partition("To end it now: manage.py ")[2]
    call_command(*shlex.split(command), interactive=False, stdout=io.StringIO())
    assert doctor() == WELL


def test_of_how_many_reservations_the_messages_were_sought_is_said(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at_most(monkeypatch, 2)
    task = room.task(unique_while="queued")
    for job in range(3):
        thrown_away(room, task.delay(job).id)
    note, *found = diagnose()
    assert [each.kind for each in found] == ["reservation"] * 2
    assert (note.kind, note.serious) == ("reservation", False)
    assert note.message == "Only the first 2 of 3 were looked at."


def test_a_reservation_whose_message_may_be_somewhere_is_right(room: Mailroom) -> None:
    """In the queue; with a worker, of which none answers; or the task is another project's."""
    room.task(unique_while="queued").delay(1)
    assert doctor() == WELL
    room.take()
    assert locks.store.reserve(reserved_key("somebody's", "job:2"), "an id", 60) is None
    assert doctor() == WELL


def test_a_reservation_that_ends_while_its_message_is_looked_for_is_not_reported(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = room.task(unique_while="queued")
    sent = task.delay(1).id
    room.app.backend.store_result(sent, None, states.FAILURE)

    def starts_meanwhile(seek: Any, jobs: Any) -> Any:
        found = [*seek(jobs)]
        assert len(found) == 1
        assert room.work_off() == [("SUCCESS", "done:1")]
        return found

    when_messages_are_sought(monkeypatch, starts_meanwhile)
    assert diagnose() == []


def test_a_result_backend_that_does_not_answer_is_asked_once(
    room: Mailroom, cut_proxy: CutProxy, caplog: pytest.LogCaptureFixture
) -> None:
    task = room.task(unique_while="queued")
    with room.results_on(cut_proxy.url):
        for job in range(3):
            task.delay(job)
        with cut_proxy.away():
            assert diagnose() == []
    (asked_once,) = [each for each in caplog.messages if "the result backend does not say" in each]
    assert task.name in asked_once


def test_of_a_broker_that_never_answers_nothing_is_said(
    use_redis: UseRedis, cut_proxy: CutProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_redis()
    seek_messages_for(monkeypatch, 0.1)
    with mailroom(cut_proxy.url) as room:
        room.task(unique_while="queued").delay(1)
        cut_proxy.pause()
        try:
            assert diagnose() == []
        finally:
            cut_proxy.resume()


@pytest.mark.filterwarnings("ignore:\\s*The 'queue' task attribute")
def test_the_queue_of_a_task_is_that_of_its_calls(room: Mailroom) -> None:
    room.app.conf.task_routes = {"routed": {"queue": "films"}}
    routed, own = room.task(name="routed"), room.task(name="own", queue="videos")
    for task, queue in ((routed, "films"), (own, "videos"), (room.task(), room.queue)):
        assert queue_of_calls(task) == queue


# ------------------------------------------------------------------------------ servers


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_of_a_server_that_may_evict_locks_the_doctor_and_a_deployment_check_tell(
    use_redis: UseRedis, own_redis_server: RedisServer, policy: str
) -> None:
    # Given a Redis that evicts keys when it is full
    use_redis(own_redis_server.url)
    with redis.Redis.from_url(own_redis_server.url) as raw:
        raw.config_set("maxmemory", "100mb")
        raw.config_set("maxmemory-policy", policy)

    # I expect a check of a deployment to say so, and no other check
    assert checked() == []
    (evicts,) = checked(deploy=True)
    assert (evicts.id, evicts.level) == ("django_tasklock.eviction", WARNING)
    assert policy in evicts.msg

    # And the doctor, unless that check is silenced
    (found,), status = doctor_json()
    assert (found["kind"], found["what"]) == ("server", "default")
    assert (found["serious"], status) == (True, 1)
    assert policy in found["message"]
    assert "noeviction" in found["hint"]
    with override_settings(SILENCED_SYSTEM_CHECKS=["django_tasklock.eviction"]):
        assert doctor() == WELL


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
        room.task(guard=fenced(source="ready", to="working"))
        Job.objects.create(status="processing")
        job = Job.objects.create(status="working")
        with lock("in:use"):
            pass
        own_redis_server.kill()
        found, status = doctor_json()
        assert {each["kind"]: each["what"] for each in found} == {
            "server": "dead",
            "lost work": f"app.Job {job.pk}",
        }
        assert any(each["message"].startswith("The store is unavailable: ") for each in found)
        assert (len(found), status) == (2, 1)


def test_a_store_that_answers_and_grants_no_locks_is_one(
    use_redis: UseRedis, own_redis_server: RedisServer
) -> None:
    """It may have no other check of its own."""
    use_redis(own_redis_server.url, tasklock={"BACKEND": "django_tasklock.stores.cache.CacheStore"})

    def serious() -> list[Any]:
        return [(each["kind"], each["message"]) for each in doctor_json()[0] if each["serious"]]

    before = serious()
    with redis.Redis.from_url(own_redis_server.url) as admin:
        admin.replicaof("127.0.0.1", 1)
    (found,) = [each for each in serious() if each not in before]
    assert found[0] == "server"
    assert found[1].startswith("no lock can be acquired: ")
    assert "read only replica" in found[1]
    assert doctor()[1] == 1


def test_work_that_cannot_run_is_said_by_the_checks_and_skipped(room: Mailroom) -> None:
    room.task(name="no-such", guard=StatusGuard(
        "app.NoSuch", pk="job", source="a", to="b", done="c"))  # fmt: skip
    room.task(name="nowhere", guard=fenced(), lock_store="nowhere")
    Job.objects.create(status="processing")
    found = {(problem.kind, problem.what) for problem in diagnose()}
    assert {("settings", "django_tasklock.E003"), ("settings", "django_tasklock.E004")} == found
    assert doctor()[1] == 1


@pytest.mark.parametrize(
    ("needs", "error"),
    [
        ("import torch_9", "ModuleNotFoundError: No module named 'torch_9'"),
        ("import os; os.environ['API_KEY_9']", "KeyError: 'API_KEY_9'"),
        ("open('/no/such')", "FileNotFoundError: [Errno 2] No such file or directory: '/no/such'"),
        ("int('worker')", "ValueError: invalid literal for int() with base 10: 'worker'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_problem_among_the_others(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, needs: str, error: str
) -> None:
    # Given a task's module that needs what only its worker has
    (tmp_path / "of_worker.py").write_text(needs)
    monkeypatch.syspath_prepend(tmp_path)
    room.app.conf.imports = ["of_worker"]
    orphan("gone:1")
    # I expect the doctor to say so, and to find what else is wrong
    found, status = doctor_json()
    assert {each["kind"]: each["serious"] for each in found} == {
        "settings": True, "unknown": True, "owner gone": True,
    }  # fmt: skip
    (said,) = (each["message"] for each in found if each["kind"] == "unknown")
    assert f"is not known: {error}" in said
    assert status == 1
    # And no other verb to fail otherwise
    with pytest.raises(CommandError, match=re.escape(f"The tasks are not known: {error}")):
        call_command("locks", "explain", "videos.process", "[1]")
