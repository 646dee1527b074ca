"""A site without Celery: what needs it says so, and the rest works."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

from django_tasklock import Lease
from tests.conftest import UseRedis
from tests.inside import asked
from tests.steps import LONG
from tests.waiting import PATIENCE

PROGRAM = """
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refusing())

import django
django.setup()
import io, json
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from django_tasklock import locks
from tests.app.models import Job

def command(*arguments):
    out = io.StringIO()
    try:
        call_command("locks", *arguments, stdout=out, stderr=io.StringIO())
    except CommandError as error:
        return str(error)
    return out.getvalue()

def page(path, **form):
    client = Client()
    client.force_login(User.objects.get_or_create(
        username="root", is_staff=True, is_superuser=True)[0])
    answer = client.post(path, form) if form else client.get(path)
    return f"{answer.status_code} {answer.content.decode()}"

LIST = "/admin/django_tasklock/lock/"
lease = locks.acquire("video:1", ttl=60, wait=1, renew=True)
said = {"works": [
    locks.acquire("video:1") is None, lease.extend(60),
    "video:1" in command("list"), "video:1" in page(LIST), lease.release(),
]}
job = Job.objects.create()
path = f"/admin/app/job/{job.pk}/change/"
shown = [
    command("doctor"), page(LIST + "health/"), command("explain", "videos.process", "[1]"),
    command("show", "video:2"), page(path), page(path, status="done", done_count="1"),
]
job.refresh_from_db()
said["status"] = job.status
said["known"] = [each for each in shown if
    "Celery cannot be imported here, so no task is known: No module" not in each]
said["row"] = json.loads(command("show", "video:2", "--format", "json"))["row"]
said["detail"] = page(LIST + "default_3Avideo_3A2/change/")[:3]
print(json.dumps(said))
"""


def test_what_is_about_tasks_without_celery(
    use_redis: UseRedis, process_env: Callable[[], dict[str, str]]
) -> None:
    """A task's lock, whose task runs in a worker that has Celery; and a guarded row: whether a
    worker is at it is not known. The page says so, and does not save over it."""
    # Given a site without Celery, and a task's lock that a worker elsewhere has
    use_redis()
    lease = asked("video:2", ttl=LONG, task="videos.process", task_id="id-1")
    assert isinstance(lease, Lease)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "celery", "kombu", "billiard"],
        env=process_env(), capture_output=True, text=True, timeout=3 * PATIENCE,
    )  # fmt: skip
    # I expect locks, the command and the pages to work, and to say what they do not know
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout) == {
        "works": [True, True, True, True, True],
        "known": [], "status": "queued", "row": None, "detail": "200",
    }  # fmt: skip
