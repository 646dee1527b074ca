"""System checks of an ordinary project's tasks, which are loaded as a worker loads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import ROOT, is_documented
from tests.projects import Project

SETTINGS = """
INSTALLED_APPS += ["django_tasklock", "videos"]
CELERY_BROKER_URL = "memory://"
CELERY_TASK_ANNOTATIONS = {"*": {"lock_wait": 0}}  # Of all tasks: meant for those that are locked.
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "redis": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://"},
}
TASKLOCK = {"default": {}, "redis": {"CACHE": "redis"}}
"""
CELERY = """
import os
from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
app = Celery("mysite")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
"""
MODELS = """
import sys
from django.core.checks import register
from django.db import models

register(lambda **_: print("checks run, Celery:", "celery" in sys.modules) or [], "counted")

class Channel(models.Model):
    name = models.CharField(max_length=20)
    status = models.CharField(choices=[(x, x) for x in ("uploaded", "processing", "ready")])

class Video(models.Model):
    status = models.CharField(max_length=20, default="uploaded")
    views = models.IntegerField(null=True)
    fence = models.BigIntegerField(null=True)
    channel = models.ForeignKey(Channel, models.CASCADE)

class Film(Video):
    length = models.IntegerField(default=0)
"""
TASKS = """
from celery import shared_task
from django_tasklock.celery import LockedTask

@shared_task(base=LockedTask, lock_name="video:{video_id}")
def right(video_id): ...
"""
# Tasks that are made, and what is wrong with them.
MISTAKES = """
from itertools import count
from celery import Task, shared_task
from django.db.models import Q
from django_tasklock.celery import LockedTask
from django_tasklock.guards import StatusGuard
from mysite.celery import app

numbers = count()

def guard(model="videos.Video", *, to="processing", **options):
    # Each claims other rows than the others do.
    options = {"exclude": Q(pk=next(numbers)), **options}
    return StatusGuard(model, source="uploaded", to=to, done="ready", **options)

def body(pk): ...

def task(name, guard, **options):
    options = {"base": LockedTask, "acks_late": True} | options
    shared_task(name=name, guard=guard, **options)(body)

task("no_fence", guard(fence_field="lock_fence"))
task("no_date", guard(since_field="views"))
task("no_since", guard(since_field="uploaded_at"))
task("small_fence", guard(fence_field="views"))
task("child", guard("videos.Film"))
task("joins", guard(filter=Q(channel__name="news")))
task("long", guard(to="in the works for a very long time"))
task("choice", guard("videos.Channel", to="proccessing"))
task("no_store", None, lock_store="nowhere")
task("alone", guard(), on_outage="run")
task("beside", guard(), on_conflict="run")
task("decides", guard(), on_conflict=lambda holder: "run")
task("no_fences", guard(fence_field="fence"), on_conflict="run")
task("fenced", guard(fence_field="fence"), on_conflict="run", lock_store="redis")
task("early", guard(), acks_late=None)
task("accepted", guard(), acks_late=False)
task("no_guard", None, acks_late=None)
task("shares", guard(exclude=Q(pk=99)))
task("shares_too", guard(exclude=Q(pk=99), to="busy"))
task("by_a_filter", guard(exclude=Q(pk=99), filter=Q(status__startswith="up")))
task("another_model", guard("videos.Channel", exclude=Q(pk=99)))
task("no_results", None, on_conflict="join")

class Made(LockedTask):
    name, guard = "made", guard()

    def run(self, pk): ...

class AlsoAccepted(Made):
    name, acks_late, guard = "also_accepted", False, guard()

class ReadsIt(Task):
    lock_ttl = None

class ByClass(Task):
    name, guard = "by_class", Made.guard

class Own(Task):
    name, lock_name = "own", "mine"

    def run(self):
        return self.lock_name

for each in (Made, AlsoAccepted, ByClass, Own):
    app.register_task(each())
task("no_base", guard(), base=Task, lock_name="video:{pk}", on_conflict="skip")

@shared_task(base=ReadsIt, lock_ttl=5)
def declared(): ...

@shared_task(once={"graceful": True})  # An option of celery-once.
def foreign(): ...
"""
FOUND = {
    "no_fence": ("E003", "has no field named 'lock_fence'"),
    "no_since": ("E003", "has no field named 'uploaded_at'"),
    "child": ("E003", "Guard that model"),
    "joins": ("E003", "joins another table"),
    "no_store": ("E004", "there is no lock store 'nowhere'"),
    "small_fence": ("E005", "the fence field "),
    "no_date": ("E005", "is no DateTimeField"),
    "choice": ("E005", "has no choice 'proccessing'"),
    "long": ("E005", "its max_length is 20"),
    "no_base": ("E008", "no base class of it reads lock_name, guard, on_conflict: it runs without"),
    "by_class": ("E008", "no base class of it reads guard: it runs without a lock"),
    "no_results": ("E009", 'on_conflict="join" needs a result_backend that keeps its results.'),
    "early": ("W009", "it has a guard and no acks_late: "),
    "made": ("W009", "it has a guard and no acks_late: "),
    "alone": ("W010", "it may run without its lock, and no fence keeps its row"),
    "beside": ("W010", "it may run without its lock, and no fence keeps its row"),
    "decides": ("W010", "it may run without its lock, and no fence keeps its row"),
    "no_fences": ("W010", "it may run without its lock, and no fence keeps its row"),
    "shares_too": ("W013", "its guard claims rows that shares claims too."),
}
NO_MODULE = "import no_such_library\n"
# Two mistakes, each with a task beside it that is right.
WRONG_TASKS = f"""{TASKS}
from mysite.celery import app

@shared_task(base=LockedTask, lock_name="video:{{video}}")
def wrong(video_id): ...

@app.task(base=LockedTask, lock_tll=5)
def misspelt(): ...

@shared_task
def plain(): ...
"""
WRONG_CLASS = """
from django_tasklock.celery import LockedTask

class Wrong(LockedTask):
    lock_tll = 5
"""
FOREIGN_BASE = """
from celery import Task, shared_task

class Broken(Task):
    def __init_subclass__(cls, **kwargs):
        raise ValueError("not today")

@shared_task(base=Broken)
def wrong(): ...
"""
ANOTHER_APP = """
from celery import Celery

@Celery("another").task(base=LockedTask, name="another")
def another(): ...
"""


def checked(project: Project, *, fails: bool = False) -> str:
    """What ``manage.py check`` prints. Each text is on the page of the checks."""
    said = project.run("python", "manage.py", "check", fails=fails)
    for identity, text in re.findall(r"^\?: \((django_tasklock\.\w+)\) (.*)$", said, re.MULTILINE):
        assert is_documented(identity, text), text
    return said


def refusing_worker(project: Project) -> str:
    said = project.run("celery", "--app", "mysite", "worker", "--pool", "solo", fails=True)
    assert "ready." not in said
    return said


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.run("django-admin", "startproject", "mysite", ".")
    project.write("mysite/settings.py", SETTINGS, append=True)
    project.write("mysite/celery.py", CELERY)
    project.write("mysite/__init__.py", "from .celery import app as celery_app\n")
    project.write("videos/__init__.py", "")
    project.write("videos/models.py", MODELS)
    project.write("videos/tasks.py", TASKS)
    return project


def test_each_mistake_of_a_task_is_said_with_its_mend(project: Project) -> None:
    # Given an ordinary project whose tasks are wrong, each in its own way, or right
    project.write("videos/tasks.py", MISTAKES)

    # I expect the checks to say of each what is wrong, and nothing of those that are right
    said = checked(project, fails=True)
    found = re.findall(r"django_tasklock\.(\w+)\) task (\w+): (.*)", said)
    assert {(task, identity) for identity, task, _ in found} == {
        (task, identity) for task, (identity, _) in FOUND.items()
    }
    for _, task, text in found:
        assert FOUND[task][1] in text
    assert said.count("(django_tasklock.") == len(FOUND) + 1  # W001: the cache is a LocMemCache.
    assert "HINT: Set acks_late=True on the task, and its message comes back." in said
    assert said.count("HINT: Add base=LockedTask") == 2

    # And every command that runs the checks to do so, once
    assert said.count("checks run") == 1
    assert "no_fence" in project.run("python", "manage.py", "migrate", fails=True)
    assert "no_fence" not in project.run("python", "manage.py", "migrate", "--skip-checks")

    # And the setting of the app to be as good as a task's acks_late
    project.write("mysite/settings.py", "CELERY_TASK_ACKS_LATE = True\n", append=True)
    assert "W009" not in checked(project, fails=True)


@pytest.mark.slow
def test_tasks_that_cannot_be_made_are_errors_that_touch_no_other_task(project: Project) -> None:
    project.write("videos/tasks.py", WRONG_TASKS)
    said = checked(project, fails=True)
    assert "E007) task videos.tasks.wrong: 'video:{video}' names the argument 'video'" in said
    assert "E007) task videos.tasks.misspelt: there is no option lock_tll; did you mean" in said
    assert said.count("(django_tasklock.") == 3  # And W001.
    # Celery makes a shared task at once for an app that is made: none is, before all are imported.
    others = '\nothers = [Celery(f"other{n}", set_as_current=False) for n in range(5)]\n'
    project.write("mysite/celery.py", CELERY + others)
    assert re.findall(r"\?: .*", checked(project, fails=True)) == re.findall(r"\?: .*", said)
    assert "DuplicateTaskName" not in said
    # In a process that has run no checks, such as that of a web server:
    said = project.run(
        "python", "-W", "error", "-c", "import django, mysite\n"
        "from videos import tasks\n"
        "print('right', bool(tasks.right.delay(1)), bool(tasks.plain.delay()))\n"
        "for use in (lambda: tasks.wrong.delay(1), lambda: tasks.wrong(1), tasks.misspelt.apply):\n"
        "    try:\n"
        "        print('used', use())\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, error)\n",
    )  # fmt: skip
    assert "right True True" in said
    assert said.count("InvalidLockConfig task videos.tasks.wrong: 'video:{video}' names the") == 2
    assert said.count("InvalidLockConfig task videos.tasks.misspelt: there is no option") == 1
    # And a worker, which meets one of the two first:
    assert re.search("names the argument 'video'|no option lock_tll", refusing_worker(project))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tasks", "identity", "says"),
    [
        # A web server need not have all libraries of the workers
        (NO_MODULE, "W005", "its tasks cannot be imported: ModuleNotFoundError: No module named"),
        (WRONG_CLASS, "E007", "its tasks cannot be imported: InvalidLockConfig: task Wrong: there"),
        (FOREIGN_BASE, "E007", "a task cannot be made: ValueError: not today"),
    ],
    ids=["module", "class", "base"],
)
def test_what_ends_the_loading_is_said_and_no_worker_starts(
    project: Project, tasks: str, identity: str, says: str
) -> None:
    """Or it would throw the messages of missing tasks away."""
    project.write("videos/tasks.py", tasks)
    said = checked(project, fails=identity.startswith("E"))
    assert f"(django_tasklock.{identity}) Celery app 'mysite': {says}" in said
    assert "HINT: Correct it. A worker of this app fails with this error, and shows where" in said
    assert says.split(": ")[-1] in refusing_worker(project)


def test_a_project_that_forgot_the_app_is_warned_once(project: Project) -> None:
    project.write("mysite/settings.py", 'INSTALLED_APPS.remove("django_tasklock")\n', append=True)
    start = "import os\nos.environ['DJANGO_SETTINGS_MODULE'] = 'mysite.settings'\nimport django\n"
    task = "import mysite\ndjango.setup()\nfrom videos.tasks import right\nright.name\n"
    lock = "django.setup()\nfrom django_tasklock import lock\nwith lock('x'): print('held')\n"
    for program in (task, task + lock, lock):
        said = project.run("python", "-c", start + program)
        assert said.count("RuntimeWarning: django_tasklock is not in INSTALLED_APPS") == 1, said
        assert 'Add "django_tasklock" to INSTALLED_APPS.' in said
    assert "held" in said
    there = "from django.conf import settings\nsettings.INSTALLED_APPS.append('django_tasklock')\n"
    assert "Warning" not in project.run("python", "-c", start + there + task + lock)


def test_the_example_project_has_nothing_to_say() -> None:
    said = Project(ROOT).run("python", "-W", "error", "-m", "example_project.manage", "check")
    assert said == "System check identified no issues (0 silenced).\n"


def test_a_process_without_celery_does_not_import_it(project: Project) -> None:
    project.write("mysite/__init__.py", "")
    project.write("mysite/urls.py", "urlpatterns = []\n")
    (project.folder / "mysite/celery.py").unlink()
    assert "checks run, Celery: False" in checked(project)


def test_a_worker_loads_its_tasks_once(project: Project) -> None:
    """It runs the checks before that, and these load the tasks."""
    project.write("videos/tasks.py", 'print("tasks imported")\n' + TASKS + ANOTHER_APP)
    said = project.run(
        "python", "-c", "from mysite import celery_app as app\n"
        "app.loader.import_default_modules(), app.finalize()\n"
        "from django_tasklock.celery.for_operators import load_tasks, locked_tasks\n"
        "from django.urls import get_script_prefix, set_script_prefix\n"
        "set_script_prefix('/of-a-request/'), load_tasks()\n"
        "print(get_script_prefix(), {'videos.tasks.right', 'another'} <= locked_tasks().keys())\n",
    )  # fmt: skip
    assert (said.count("tasks imported"), said.count("checks run")) == (1, 1)
    # A page that loads them keeps its request's prefix
    assert "/of-a-request/ True" in said
