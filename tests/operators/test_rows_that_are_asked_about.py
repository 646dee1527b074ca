"""Rows of which the doctor asks first: of another store, of one of several tasks, or that wait."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models import Q
from django.utils.timezone import now

from django_tasklock import lock
from django_tasklock.guards import StatusGuard
from tests.app.models import Job
from tests.command import doctor, doctor_json
from tests.conftest import UseCaches, UseRedis
from tests.findings import fenced, guard, lost
from tests.inside import diagnose, look_at_most
from tests.mailroom import Mailroom, mailroom
from tests.servers import RedisServer
from tests.steps import LONG, orphan, silent, taken
from tests.store_cases import redis_cache

pytestmark = pytest.mark.django_db(transaction=True)
WELL = ("Nothing is wrong.\n", 0)


# ------------------------------------------------------------------------------ another store


@pytest.fixture(params=["Redis", "a database"])
def store_of(request: pytest.FixtureRequest, use_caches: UseCaches) -> Callable[[str], None]:
    """Has the locks of the default store have this KEY_PREFIX."""
    backend = {"BACKEND": "django_tasklock.stores.database.DatabaseStore"}
    kind = {} if request.param == "Redis" else backend
    url = request.getfixturevalue("redis_server").url
    caches = {"default": redis_cache(url)}
    return lambda prefix: use_caches(caches, {"default": {"KEY_PREFIX": prefix, **kind}})


def claimed(task: Any) -> Job:
    """A row that a run has claimed which died."""
    job: Job = Job.objects.create()
    lease = taken(f"job:{job.pk}")
    assert task.guard.claim(job.pk, lease.fence)
    lease.release()
    return job


def test_a_row_that_another_store_knows_is_sent_on_a_second_word_alone(
    store_of: Callable[[str], None], redis_server: RedisServer
) -> None:
    # Given a row that a run of before a deploy works on, and a doctor that has looked elsewhere
    with mailroom(redis_server.url) as room:
        task = room.task(guard=fenced())
        store_of("after")
        assert doctor() == WELL
        store_of("before")
        job = Job.objects.create()
        with lock(f"job:{job.pk}", ttl=LONG) as lease:
            assert task.guard.claim(job.pk, lease.fence)

            # When the doctor looks with another KEY_PREFIX, in which locks are taken by now
            store_of("after")
            for used in (False, True):
                (found,), status = doctor_json("--requeue")

                # I expect it to say so, and to send nothing
                assert (found["kind"], found["requeued"], status) == ("other store", None, 1)
                assert "had its fence, of 20" in found["message"]
                assert (found["task"], room.waiting()) == (task.name, [])
                if not used:
                    taken("another:1").release()

        # And to send it when it is told so, and what that store has given without such a word
        said, sent = found["hint"].partition(f"Send {task.name} again: manage.py ")[::2]
        assert "no run of it lives" in said
        assert doctor_json(*sent.split()[2:])[0][0]["requeued"] == "sent again"
        assert len(room.waiting()) == 1
        claimed(task)
        assert [each["kind"] for each in doctor_json()[0]] == ["other store", "lost work"]


def test_in_a_redis_that_has_granted_nothing_a_row_without_a_fence_is_sent_on_that_word_too(
    own_redis_server: RedisServer, use_redis: UseRedis
) -> None:
    use_redis(own_redis_server.url)
    with mailroom(own_redis_server.url) as room:
        room.task(guard=guard())
        Job.objects.create(status="processing")
        (found,), _ = doctor_json("--requeue")
        assert (found["kind"], found["requeued"]) == ("other store", None)
        assert "but no lock was ever granted here." in found["message"]
        taken("another:1").release()
        assert [each["kind"] for each in doctor_json()[0]] == ["lost work"]


def test_a_store_that_was_emptied_does_not_have_its_rows_sent(
    own_redis_server: RedisServer, use_redis: UseRedis
) -> None:
    use_redis(own_redis_server.url)
    with mailroom(own_redis_server.url) as room:
        task = room.task(guard=fenced())
        first = claimed(task)
        assert lost() == {first.pk}
        room.redis.flushall()
        second = claimed(task)
        assert {row.pk: row.kind for row in diagnose()} == {
            first.pk: "other store", second.pk: "lost work",
        }  # fmt: skip


# ------------------------------------------------------------------------------ several tasks


def test_of_several_tasks_for_one_row_it_is_asked_which(room: Mailroom) -> None:
    first = room.task(name="film.first", guard=guard(exclude=Q(done_count=9)))
    room.task(name="film.second", guard=guard(), lock_name="second:{job}")
    Job.objects.create(status="processing")
    found, status = doctor_json("--requeue", "--task", "film.*")
    assert status == 1
    assert {each["task"]: each["requeued"] for each in found} == {
        "film.first": None, "film.second": None,
    }  # fmt: skip
    assert found[0]["hint"] == (
        "Several tasks may work on it. If it is this one’s, send film.first again: "
        "manage.py locks doctor --requeue --task=film.first"
    )
    assert room.waiting() == []
    (sent,), status = doctor_json("--requeue", "--task", "*.first")
    assert (sent["task"], sent["requeued"], status) == (first.name, "sent again", 0)
    assert [message.task for message in room.waiting()] == ["film.first"]
    assert doctor("--task", "other.*") == ("Nothing is wrong with other.*.\n", 0)


def test_where_no_filter_says_whose_a_row_is_each_task_is_asked_about(room: Mailroom) -> None:
    """A filter need not fit any more to a row that is claimed."""
    for number in (1, 2):
        room.task(name=f"film.{number}", guard=guard(filter=Q(done_count=number)))
    of = {count: Job.objects.create(status="processing", done_count=count).pk for count in (2, 9)}
    assert {(each.pk, each.work.task) for each in diagnose()} == {
        (of[2], "film.2"), (of[9], "film.1"), (of[9], "film.2"),
    }  # fmt: skip


def test_narrowed_to_a_task_it_still_says_that_a_store_does_not_answer(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent(monkeypatch, "walk")
    (found,), status = doctor_json("--task", "film.*")
    assert found["message"].startswith("The store is unavailable: ")
    assert status == 1


# ------------------------------------------------------------------------------ that wait


def test_rows_that_wait_too_long_are_found_and_sent_once_in_that_time(room: Mailroom) -> None:
    # Given rows whose message is lost, one that has waited for a short time, and one at work
    states = ["queued", "done", "failed"]
    task = room.task(
        guard=fenced(source=states, since_field="uploaded_at", exclude=Q(done_count=9))
    )
    ago = {hours: now() - timedelta(hours=hours) for hours in (1, 3)}
    old = Job.objects.create(uploaded_at=ago[3])
    Job.objects.create(uploaded_at=ago[1])
    Job.objects.create(uploaded_at=ago[3], done_count=9)
    # Rows whose work is over are in source, too: a call works on them again
    for over in states[1:]:
        Job.objects.create(uploaded_at=ago[3], status=over)
    at_work = Job.objects.create(uploaded_at=ago[3])
    with lock(f"job:{at_work.pk}"):
        assert doctor() == WELL
        (found,), status = doctor_json("--source-older", "2h")
        assert (found["kind"], found["pk"], status) == ("waiting too long", str(old.pk), 1)
        words = ("--requeue", "--source-older=7200")
        command = " ".join(words)
        assert found["hint"] == f"Send {task.name} again: manage.py locks doctor {command}"
        assert doctor_json(*words)[0][0]["requeued"] == "sent again"
        # Its message may wait as long as that
        room.redis.delete(room.queue)
        assert doctor_json(*words)[0][0]["requeued"] == "sent a moment ago"
        (key,) = room.redis.keys(f"*requeued {task.name} {old.pk} *")
        assert 3600 < room.redis.ttl(key) <= 7200


def test_the_command_for_rows_that_wait_for_weeks_can_be_given_as_it_is_said(
    room: Mailroom,
) -> None:
    # Given a row that has waited for three weeks
    room.task(guard=fenced(since_field="uploaded_at"))
    Job.objects.create(uploaded_at=now() - timedelta(days=21))

    # I expect the hint's own words, with all digits of the seconds, to send it
    (found,), _ = doctor_json("--source-older", "12d0.5s")
    words = found["hint"].partition("locks doctor ")[2].split()
    assert words == ["--requeue", "--source-older=1036801"]
    assert doctor_json(*words)[0][0]["requeued"] == "sent again"


def test_of_several_tasks_for_which_a_row_waits_it_is_asked_which(room: Mailroom) -> None:
    waits: dict[str, Any] = {"since_field": "uploaded_at"}
    room.task(name="film.first", guard=fenced(**waits, exclude=Q(done_count=9)))
    room.task(name="film.second", guard=fenced(**waits, to="busy"), lock_name="second:{job}")
    room.task(name="film.other", guard=fenced(**waits, source="new", to="cut"))
    Job.objects.create(uploaded_at=now() - timedelta(hours=3))
    other = Job.objects.create(uploaded_at=now() - timedelta(hours=3), status="new")
    # Given also a row of another model, which has the same key
    users: dict[str, Any] = {"pk": "job", "field": "username", "to": "sent", "done": "done"}
    users |= {"source": "queued", "since_field": "date_joined"}
    room.task(name="mail.send", guard=StatusGuard("auth.User", **users))
    User.objects.create(pk=other.pk, username="queued")
    words = ("--requeue", "--source-older", "2h")
    found, status = doctor_json(*words)
    assert status == 1
    assert {each["task"]: each["requeued"] for each in found} == {
        "film.first": None, "film.second": None, "film.other": "sent again",
    }  # fmt: skip
    asks = [each["hint"].startswith("Several tasks may work on it. ") for each in found]
    assert sum(asks) == 2
    (sent,), status = doctor_json(*words, "--task", "film.second")
    assert (sent["requeued"], status) == ("sent again", 0)
    assert [message.task for message in room.waiting()] == ["film.other", "film.second"]


def test_where_no_field_says_since_when_rows_wait_that_is_said(room: Mailroom) -> None:
    room.task(guard=fenced())
    Job.objects.create()
    (found,), status = doctor_json("--source-older", "2h")
    assert (found["kind"], found["serious"], status) == ("unknown", False, 0)
    assert "has no since_field" in found["message"]


def test_how_many_are_looked_at_is_said(room: Mailroom, monkeypatch: pytest.MonkeyPatch) -> None:
    look_at_most(monkeypatch, 2)
    for at in range(4):
        orphan(f"gone:{at}")
    found, _ = doctor_json()
    assert len(found) == 2 + 1
    assert "Only the first 2 of 4 were looked at." in [each["message"] for each in found]
