"""Which lock a call would take and why, and whether it could claim its row now."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.management import CommandError
from django.db.models import Q

from django_tasklock import locks
from django_tasklock.celery import by
from django_tasklock.stores import stores
from tests.admin.conftest import MakeTask, make_task
from tests.app.models import Job
from tests.cli.test_command import on_redis, run
from tests.conftest import UseRedis
from tests.mailroom import mailroom
from tests.steps import taken

__all__ = ["make_task", "on_redis"]
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning"),
]


def fields_of(text: str) -> dict[str, str]:
    verdict, *lines = text.splitlines()
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {"verdict": verdict, **{label: value.strip() for label, value in pairs}}


@pytest.mark.parametrize("arguments", ["[7]", '{"job_id": 7}', '{"job_id": 7, "much": 1}'])
def test_explain_a_template(on_redis: None, make_task: MakeTask, arguments: str) -> None:
    task = make_task("job:{job_id}")
    said = fields_of(run("explain", task.name, arguments))
    assert said["name"] == "job:7"
    assert said["why"] == "lock_name is 'job:{job_id}', filled from the arguments"
    assert said["arguments"] == "job_id=7, much=1"
    assert said["guard"] == "app.Job 7: status queued -> processing -> done, or failed"
    assert (said["ttl"], said["renew"]) == ("60.0", "True")
    failed = "Would be skipped: a claim of app.Job 7 would fail (does not exist)."
    assert said["verdict"] == failed
    # And that very lock it is
    taken("job:7")
    said = fields_of(run("explain", task.name, arguments))
    assert said["verdict"] == "Would be skipped: job:7 is held."
    assert said["lock now"].startswith("Held by ")


def test_explain_a_debounce(on_redis: None, make_task: MakeTask) -> None:
    task = make_task("job:{job_id}")
    assert "debounce" not in fields_of(run("explain", task.name, "[7]"))
    type(task).debounce = 90
    said = fields_of(run("explain", task.name, "[7]"))
    assert said["debounce"] == "90"
    type(task).debounce_max = 600
    as_json = json.loads(run("explain", task.name, "[7]", "--format", "json"))
    assert (as_json["debounce"], as_json["debounce_max"]) == (90, 600)


def test_explain_a_function_and_a_digest(on_redis: None, make_task: MakeTask) -> None:
    by_function = make_task(name_for)
    said = json.loads(run("explain", by_function.name, "[7, 2]", "--format", "json"))
    assert said["name"] == "made:7:2"
    assert "name_for" in said["why"]
    assert said["held"] == []
    by_digest = make_task(None)
    said = json.loads(run("explain", by_digest.name, "[7]", "--format", "json"))
    assert said["name"] == by_digest.lock_name_of((7,), {})
    assert "digest" in said["why"]


def test_explain_chosen_arguments(on_redis: None, make_task: MakeTask) -> None:
    task = make_task(by("job_id"))
    said = fields_of(run("explain", task.name, "[7, 2]"))
    assert said["name"] == f"{task.name}:7"
    assert said["why"] == "lock_name is by('job_id'): the task's name and these arguments"
    assert said["guard"] == "app.Job 7: status queued -> processing -> done, or failed"


def name_for(job_id: int, much: int) -> str:
    return f"made:{job_id}:{much}"


def test_explain_what_cannot_be(on_redis: None, make_task: MakeTask) -> None:
    task = make_task("job:{job_id}")
    for arguments, message in (
        ("[]", "cannot be called like that"),
        ('{"nothing": 1}', "cannot be called like that"),
        ('["' + "x" * 300 + '"]', "cannot be called like that"),
        ("{", "not a JSON array, or object"),
        ("7", "not a JSON array, or object"),
    ):
        with pytest.raises(CommandError, match=message):
            run("explain", task.name, arguments)
    with pytest.raises(CommandError, match=r"No task no\.such\.task takes a lock"):
        run("explain", "no.such.task")


# ------------------------------------------------------------------------------ the row


def row_now(task: Any, job: int) -> tuple[str, Any]:
    """What the command says of the call's row: as a line, and as JSON."""
    line = fields_of(run("explain", task.name, f"[{job}]"))["row now"]
    return line, json.loads(run("explain", task.name, f"[{job}]", "--format", "json"))["row"]


def test_explain_shows_the_whole_guard(on_redis: None, make_task: MakeTask) -> None:
    task = make_task(
        "job:{job_id}",
        filter=Q(done_count=0),
        exclude=Q(result_file__isnull=False),
        fence_field="lock_fence",
    )
    said = fields_of(run("explain", task.name, "[7]"))
    assert said["guard"] == "app.Job 7: status queued -> processing -> done, or failed"
    assert json.loads(run("explain", task.name, "[7]", "--format", "json"))["guard_options"] == {
        "failed": "failed",
        "filter": "(AND: ('done_count', 0))",
        "exclude": "(AND: ('result_file__isnull', False))",
        "fence_field": "lock_fence",
    }
    assert said["guard_options"].startswith("failed=failed, filter=(AND: ('done_count', 0)), ")


@pytest.mark.parametrize(
    ("row", "line", "refused"),
    [
        ({"status": "queued"}, "'queued': a run could claim it", None),
        ({"status": "processing"}, "'processing': a run that gets the lock could claim it", None),
        ({"status": "done"}, "'done': no run could claim it: not in source", "not in source"),
        ({"status": "failed"}, "'failed': no run could claim it: not in source", "not in source"),
        ({"done_count": 1}, "'queued': no run could claim it: filtered out", "filtered out"),
        ({"result_file": "a"}, "'queued': no run could claim it: excluded", "excluded"),
        # What turns a fresh row away does not matter to one that was claimed before
        (
            {"status": "processing", "done_count": 1, "result_file": "a", "lock_fence": 5},
            "'processing': a run that gets the lock could claim it",
            None,
        ),
        (
            {"status": "processing", "lock_fence": 10**16},
            "'processing': no run could claim it: its fence is larger than any lease's now",
            "its fence is larger than any lease's now",
        ),
        (
            {"lock_fence": 10**16},
            "'queued': no run could claim it: its fence is larger than any lease's now",
            "its fence is larger than any lease's now",
        ),
    ],
)
def test_what_explain_says_of_the_row_is_what_a_claim_does(
    on_redis: None, make_task: MakeTask, row: dict[str, Any], line: str, refused: str | None
) -> None:
    task = make_task(
        "job:{job_id}",
        filter=Q(done_count=0),
        exclude=Q(result_file__isnull=False),
        fence_field="lock_fence",
    )
    job = Job.objects.create(**row)
    said, as_json = row_now(task, job.pk)
    assert said == line
    assert as_json == {
        "row": f"app.Job {job.pk}",
        "status": job.status,
        "claimed": job.status == "processing",
        "refused": refused,
    }
    lease = locks.acquire(f"job:{job.pk}", ttl=60)
    assert lease is not None
    assert task.guard.claim(job.pk, lease.fence) is (refused is None)


def test_explain_a_row_that_does_not_exist(on_redis: None, make_task: MakeTask) -> None:
    task = make_task("job:{job_id}")
    said, as_json = row_now(task, 7)
    assert said == "does not exist: no run could claim it"
    assert (as_json["status"], as_json["refused"]) == (None, "does not exist")
    assert not task.guard.claim(7)


def test_a_fence_is_too_large_until_leases_have_larger_ones(
    on_redis: None, make_task: MakeTask
) -> None:
    """As after a time in which the server's clock was ahead: the fences go on from there."""
    task = make_task("job:{job_id}", fence_field="lock_fence")
    store = stores["default"]
    job = Job.objects.create(status="processing", lock_fence=(store.next_fence() or 0) + 10**12)
    assert "its fence is larger" in row_now(task, job.pk)[0]
    store.client.ask("HSET", [store.keyspace.fences], b"", str(job.lock_fence))  # type: ignore[attr-defined]
    assert row_now(task, job.pk)[1]["refused"] is None
    lease = locks.acquire(f"job:{job.pk}", ttl=60)
    assert lease is not None
    assert task.guard.claim(job.pk, lease.fence)


def test_a_key_that_no_row_can_have_is_said_and_not_logged(
    on_redis: None, make_task: MakeTask, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a mistake of who typed it."""
    task = make_task("job:{job_id}")
    said = fields_of(run("explain", task.name, '["x"]'))["row now"]
    assert said == "not known: Field 'id' expected a number but got 'x'."
    assert not caplog.records


def test_explain_a_task_without_a_guard(on_redis: None, make_task: MakeTask) -> None:
    task = make_task("job:{job_id}")
    task.guard = None
    said = fields_of(run("explain", task.name, "[7]"))
    assert not {"guard", "row now"} & set(said)
    assert json.loads(run("explain", task.name, "[7]", "--format", "json"))["row"] is None


def test_with_slots_the_permits_are_what_is_held(use_redis: UseRedis, redis_server: Any) -> None:
    """Who holds the name itself keeps nobody from a permit."""
    use_redis()
    with mailroom(redis_server.url) as room:
        name = room.task(lock_slots=2).name
        assert locks.hold("job:7", 600, "alice")
        assert fields_of(run("explain", name, "[7]"))["verdict"] == (
            "Would run now: 0 of 2 permits of job:7 are held."
        )
        taken("job:7", slots=2)
        said = fields_of(run("explain", name, "[7]"))
        assert said["verdict"] == "Would run now: 1 of 2 permits of job:7 are held."
        assert said["permit #1 now"].startswith("Held by ")
        as_json = json.loads(run("explain", name, "[7]", "--format", "json"))
        assert [permit["slot"] for permit in as_json["held"]] == [1]
