"""What is optional: the apps of `contrib`, which nothing else imports, and Celery."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from django_tasklock import Lease
from django_tasklock.signals import OUTCOMES
from tests import needs
from tests.conftest import UseRedis
from tests.inside import asked
from tests.steps import LONG
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
LIBRARIES = {"prometheus": "prometheus_client", "opentelemetry": "opentelemetry"}
REFUSING = """
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refusing())
"""
SITE = """
from django.conf import settings
from tests import settings as of_tests
known = {name: value for name, value in vars(of_tests).items() if name.isupper()}
known["INSTALLED_APPS"] = [*of_tests.INSTALLED_APPS, *sys.argv[1].split()]
known["TASKLOCK"] = {"default": {"BACKEND": "django_tasklock.stores.memory.MemoryStore"}}
settings.configure(**known)
import django
django.setup()
import django_tasklock.celery
from django.core.management import call_command
from django_tasklock import lock
call_command("check")
call_command("makemigrations", "--check", "--dry-run", verbosity=0)
call_command("locks", "list")
"""
IMPORTED = """
print([name for name in sys.modules if name.startswith((
    "prometheus_client", "opentelemetry", "django_tasklock.contrib"))])
"""
COUNTED = """
import json
from django_tasklock import locks
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))

@lock("video:{video_id}")
def work(video_id):
    pass

work(1), work(2)
locks.hold("report", 60), locks.clear("report")
(resource,) = reader.get_metrics_data().resource_metrics
said, bounds = {}, ()
for metric in resource.scope_metrics[0].metrics:
    for point in metric.data.data_points:
        name = " ".join([metric.name, metric.unit, *point.attributes.values()])
        said[name] = point.value if metric.unit != "s" else point.count
        bounds = getattr(point, "explicit_bounds", bounds)
print(json.dumps([said, 3600.0 in bounds]))
"""


PROGRAM = """
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
    page(path), page(path, status="done", done_count="1"),
]
job.refresh_from_db()
said["status"] = job.status
said["known"] = [each for each in shown if
    "Celery cannot be imported here, so no task is known: No module" not in each]
said["row"] = json.loads(command("show", "video:2", "--format", "json"))["row"]
said["table"] = "Held by" in command("show", "video:2")
said["detail"] = page(LIST + "default_3Avideo_3A2/change/")[:3]
print(json.dumps(said))
"""


def last_line(apps: str, *refused: str, then: str = "", **environment: str) -> str:
    """What a process of a site with these apps, in which some modules cannot be imported, prints
    last; its error, if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", REFUSING + SITE + then, apps, *refused],
        cwd=ROOT, env=os.environ | environment,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1]


@pytest.mark.parametrize("refused", [(), LIBRARIES.values()], ids=["there", "missing"])
def test_a_site_without_the_apps_imports_neither_them_nor_their_libraries(
    refused: list[str],
) -> None:
    assert last_line("", *refused, then=IMPORTED) == "[]"


@pytest.mark.parametrize("app", LIBRARIES)
def test_an_app_without_its_library_says_which_extra_to_install(app: str) -> None:
    said = last_line(f"django_tasklock.contrib.{app}", LIBRARIES[app])
    assert "ImproperlyConfigured" in said
    assert f'pip install "django-tasklock[{app}]"' in said
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    extras = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    assert re.search(f"^{app} = ", extras, re.MULTILINE)


def test_processes_with_the_app_for_prometheus_count_together(tmp_path: Path) -> None:
    """In prometheus_client's multiprocess mode, as the children of a worker do."""
    needs.package("prometheus_client")
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector

    app, then = "django_tasklock.contrib.prometheus", "lock('a')(print)('done')"
    for _ in range(2):
        assert last_line(app, then=then, PROMETHEUS_MULTIPROC_DIR=str(tmp_path)) == "done"
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))  # type: ignore[no-untyped-call]
    counted = 'tasklock_acquires_total{lock="a",outcome="acquired",store="default"} 2.0'
    assert counted in generate_latest(registry).decode().splitlines()


def test_the_app_for_opentelemetry_counts_the_same_by_the_sdk_of_the_project() -> None:
    needs.package("opentelemetry.sdk")
    said = last_line("django_tasklock.contrib.opentelemetry", then=COUNTED)
    lock, given_up = "video:{video_id} default", "tasklock.tasks_not_run {call}"
    assert json.loads(said) == [{
        f"tasklock.acquires {{acquire}} {lock} acquired": 2,
        f"tasklock.wait s {lock} acquired": 2,
        f"tasklock.hold s {lock} released": 2,
        "tasklock.locks_cleared {lock} other default cleared": 1,
        # What alerts ask for is there before it happens.
        f"tasklock.acquires {{acquire}} {lock} unavailable": 0,
        f"tasklock.leases_lost {{lease}} {lock} expired": 0,
        f"tasklock.leases_lost {{lease}} {lock} gone": 0,
        **{f"{given_up} {lock} given_up {reason}": 0 for reason in OUTCOMES["given_up"]},
    }, True]  # fmt: skip


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
        [sys.executable, "-c", REFUSING + PROGRAM, "", "celery", "kombu", "billiard"],
        env=process_env(), capture_output=True, text=True, timeout=3 * PATIENCE, check=False,
    )  # fmt: skip
    # I expect locks, the command and the pages to work, and to say what they do not know
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout) == {
        "works": [True, True, True, True, True],
        "known": [], "status": "queued", "row": None, "table": True, "detail": "200",
    }  # fmt: skip
