"""Which lock a call would take and why, and whether it could claim its row now."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.management import CommandError
from django.db.models import Q

from django_tasklock import locks
from django_tasklock.celery import by
from tests.admin.conftest import MakeTask, make_task, on_redis
from tests.app.models import Job
from tests.cli.test_command import run
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


def explained(task: Any, *arguments: str) -> dict[str, Any]:
    """What the command says as JSON."""
    said: dict[str, Any] = json.loads(run("explain", task.name, *arguments, "--format", "json"))
    return said


def made_name(job_id: int, much: int) -> str:
    return f"made:{job_id}:{much}"


@pytest.mark.parametrize("arguments", ["[7]", '{"job_id": 7}', '{"job_id": 7, "much": 1}'])
def test_explain_a_call(on_redis: None, make_task: MakeTask, arguments: str) -> None:
    task = make_task("job:{job_id}")
    said = fields_of(run("explain", task.name, arguments))
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


@pytest.mark.parametrize(
    ("lock_name", "name", "why"),
    [
        ("job:{job_id}", "job:7", "lock_name is 'job:{job_id}', filled from the arguments"),
        (by("job_id"), "{task}:7", "lock_name is by('job_id'): the task's name and these "),
        (made_name, "made:7:2", "made_name"),
        (None, "{task}:", "digest"),
    ],
)
def test_explain_which_lock_and_why(
    on_redis: None, make_task: MakeTask, lock_name: Any, name: str, why: str
) -> None:
    task = make_task(lock_name)
    said = explained(task, "[7, 2]")
    assert said["name"] == task.lock_name_of((7, 2), {})
    assert said["name"].startswith(name.format(task=task.name))
    assert why in said["why"]
    assert said["held"] == []


def test_explain_has_a_debounce_and_a_guard_where_the_task_has(
    on_redis: None, make_task: MakeTask
) -> None:
    task = make_task("job:{job_id}")
    task.guard = None
    said = fields_of(run("explain", task.name, "[7]"))
    assert not {"guard", "row now", "debounce"} & set(said)
    assert explained(task, "[7]")["row"] is None
    type(task).debounce, type(task).debounce_max = 90, 600
    assert fields_of(run("explain", task.name, "[7]"))["debounce"] == "90"
    as_json = explained(task, "[7]")
    assert (as_json["debounce"], as_json["debounce_max"]) == (90, 600)


def test_explain_what_cannot_be(on_redis: None, make_task: MakeTask) -> None:
    task = make_task("job:{job_id}")
    for arguments in ("[]", '{"nothing": 1}', '["' + "x" * 300 + '"]'):
        with pytest.raises(CommandError, match="cannot be called like that"):
            run("explain", task.name, arguments)
    for arguments in ("{", "7"):
        with pytest.raises(CommandError, match="not a JSON array, or object"):
            run("explain", task.name, arguments)
    with pytest.raises(CommandError, match=r"No task no\.such\.task takes a lock"):
        run("explain", "no.such.task")


# ------------------------------------------------------------------------------ the row


def row_now(task: Any, job: object) -> tuple[str, Any]:
    """What the command says of the call's row: as a line, and as JSON."""
    arguments = json.dumps([job])
    line = fields_of(run("explain", task.name, arguments))["row now"]
    return line, explained(task, arguments)["row"]


@pytest.fixture
def choosy(on_redis: None, make_task: MakeTask) -> Any:
    """A task whose guard has all its options."""
    return make_task(
        "job:{job_id}",
        filter=Q(done_count=0),
        exclude=Q(result_file__isnull=False),
        fence_field="lock_fence",
    )


def test_explain_shows_the_whole_guard(choosy: Any) -> None:
    said = fields_of(run("explain", choosy.name, "[7]"))
    assert said["guard_options"].startswith("failed=failed, filter=(AND: ('done_count', 0)), ")
    assert explained(choosy, "[7]")["guard_options"] == {
        "failed": "failed",
        "filter": "(AND: ('done_count', 0))",
        "exclude": "(AND: ('result_file__isnull', False))",
        "fence_field": "lock_fence",
    }


TOO_LARGE = "its fence is larger than any lease's now"


@pytest.mark.parametrize(
    ("row", "refused"),
    [
        ({"status": "queued"}, None),
        ({"status": "processing"}, None),
        ({"status": "done"}, "not in source"),
        ({"status": "failed"}, "not in source"),
        ({"done_count": 1}, "filtered out"),
        ({"result_file": "a"}, "excluded"),
        # What turns a fresh row away does not matter to one that was claimed before
        ({"status": "processing", "done_count": 1, "result_file": "a", "lock_fence": 5}, None),
        ({"status": "processing", "lock_fence": 10**16}, TOO_LARGE),
        ({"status": "queued", "lock_fence": 10**16}, TOO_LARGE),
    ],
)
def test_what_explain_says_of_the_row_is_what_a_claim_does(
    choosy: Any, row: dict[str, Any], refused: str | None
) -> None:
    job = Job.objects.create(**row)
    claimed = job.status == "processing"
    could = "a run that gets the lock could claim it" if claimed else "a run could claim it"
    line, as_json = row_now(choosy, job.pk)
    assert line == f"'{job.status}': " + (f"no run could claim it: {refused}" if refused else could)
    assert as_json == {
        "row": f"app.Job {job.pk}", "status": job.status, "claimed": claimed, "refused": refused,
    }  # fmt: skip
    assert choosy.guard.claim(job.pk, taken(f"job:{job.pk}").fence) is (refused is None)


def test_explain_a_row_that_is_not_there_and_a_key_that_none_can_have(
    on_redis: None, make_task: MakeTask, caplog: pytest.LogCaptureFixture
) -> None:
    task = make_task("job:{job_id}")
    line, as_json = row_now(task, 7)
    assert line == "does not exist: no run could claim it"
    assert (as_json["status"], as_json["refused"]) == (None, "does not exist")
    assert not task.guard.claim(7)
    line, _ = row_now(task, "x")
    assert line == "not known: Field 'id' expected a number but got 'x'."
    # It is a mistake of who typed it
    assert not caplog.records


def test_with_slots_the_permits_are_what_is_held(use_redis: UseRedis, redis_server: Any) -> None:
    """Who holds the name itself keeps nobody from a permit, nor the other way round."""
    use_redis()
    with mailroom(redis_server.url) as room:
        task = room.task(lock_slots=2)
        assert locks.hold("job:7", 600, "alice")
        said = fields_of(run("explain", task.name, "[7]"))
        assert said["verdict"] == "Would run now: 0 of 2 permits of job:7 are held."
        taken("job:7", slots=2)
        said = fields_of(run("explain", task.name, "[7]"))
        assert said["verdict"] == "Would run now: 1 of 2 permits of job:7 are held."
        assert said["permit #1 now"].startswith("Held by ")
        assert [permit["slot"] for permit in explained(task, "[7]")["held"]] == [1]
        assert locks.clear("job:7")
        said = fields_of(run("explain", room.task().name, "[7]"))
        assert said["verdict"] == "Would run now: nobody holds job:7."
        assert taken("job:7").release()
