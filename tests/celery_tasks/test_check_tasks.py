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

class Video(models.Model):
    status = models.CharField(max_length=20, default="uploaded")
    views = models.IntegerField(null=True)
"""
TASKS = """
from celery import shared_task
from django_tasklock.celery import LockedTask
from django_tasklock.guards import StatusGuard

GUARD = dict(pk="video_id", source="uploaded", to="processing", done="ready")
LATE = dict(base=LockedTask, acks_late=True)

@shared_task(**LATE, guard=StatusGuard("videos.Video", fence_field="lock_fence", **GUARD))
def no_fence(video_id): ...

@shared_task(**LATE, guard=StatusGuard("videos.Video", fence_field="views", **GUARD))
def small_fence(video_id): ...

@shared_task(base=LockedTask, lock_store="nowhere")
def no_store(video_id): ...

@shared_task(base=LockedTask, lock_renew=False)
def no_end(video_id): ...

@shared_task(**LATE, guard=StatusGuard("videos.Video", **GUARD))
def right(video_id): ...
"""
# What a guard writes, and how it claims.
GUARDS = """
from celery import shared_task
from django.db.models import Q
from django_tasklock.celery import LockedTask
from django_tasklock.guards import StatusGuard

def guarded(name, model="videos.Video", to="processing", fence=None, **options):
    guard = StatusGuard(model, source="uploaded", to=to, done="ready", fence_field=fence,
                        filter=options.pop("filter", None))
    return shared_task(base=LockedTask, acks_late=True, name=name, guard=guard, **options)

@guarded("child", "videos.Film")
def child(pk): ...

@guarded("joins", filter=Q(channel__name="news"))
def joins(pk): ...

@guarded("long", to="in the works for a very long time")
def long(pk): ...

@guarded("choice", "videos.Channel", to="proccessing")
def choice(pk): ...

@guarded("alone", on_outage="run")
def alone(pk): ...

@guarded("beside", on_conflict="run")
def beside(pk): ...

@guarded("fenced", fence="fence", on_conflict="run", lock_store="redis")
def fenced(pk): ...

@guarded("no_fences", fence="fence", on_conflict="run")
def no_fences(pk): ...
"""
GUARDED_MODELS = """
class Film(Video):
    length = models.IntegerField(default=0)

class Channel(models.Model):
    name = models.CharField(max_length=20)
    status = models.CharField(choices=[(x, x) for x in ("uploaded", "processing", "ready")])

Video.add_to_class("channel", models.ForeignKey(Channel, models.CASCADE))
Video.add_to_class("fence", models.BigIntegerField(null=True))
"""
NO_MODULE = "import no_such_library\n"
# Two mistakes, each with a task beside it that is right.
WRONG_TASKS = """
from celery import shared_task
from mysite.celery import app
from django_tasklock.celery import LockedTask

@shared_task(base=LockedTask, lock_name="video:{video}")
def wrong(video_id): ...

@app.task(base=LockedTask, lock_tll=5)
def misspelt(): ...

@shared_task(base=LockedTask, lock_name="video:{video_id}")
def right(video_id): ...

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
EARLY = """
from celery import shared_task
from mysite.celery import app
from django_tasklock.celery import LockedTask
from django_tasklock.guards import StatusGuard

GUARD = StatusGuard("videos.Video", pk="video_id", source="uploaded", to="busy", done="ready")

@shared_task(base=LockedTask, guard=GUARD)
def early(video_id): ...

@shared_task(base=LockedTask, guard=GUARD, acks_late=True)
def late(video_id): ...

@shared_task(base=LockedTask, guard=GUARD, acks_late=False)
def accepted(video_id): ...

@shared_task(base=LockedTask)
def no_guard(video_id): ...

class Made(LockedTask):
    name, guard = "videos.tasks.made", GUARD

    def run(self, video_id): ...

class Accepted(Made):
    name, acks_late = "videos.tasks.also_accepted", False

app.register_task(Made()), app.register_task(Accepted())
"""
NO_BASE = """
from celery import Task, shared_task
from django_tasklock.guards import StatusGuard

GUARD = StatusGuard("videos.Video", pk="video_id", source="uploaded", to="busy", done="ready")

@shared_task(lock_name="video:{video_id}", on_conflict="skip", guard=GUARD)
def no_base(video_id): ...

class ReadsIt(Task):
    lock_ttl = None

@shared_task(base=ReadsIt, lock_ttl=5)
def declared(): ...

class ByClass(Task):
    guard = GUARD

@shared_task(once={"graceful": True})  # An option of celery-once.
def right(): ...

class Own(Task):
    lock_name = "mine"

    def run(self):
        return self.lock_name

from mysite.celery import app
app.register_task(ByClass()), app.register_task(Own())
"""


def checked(project: Project, *, fails: bool = False) -> str:
    """What ``manage.py check`` prints. Each text is on the page of the checks."""
    said = project.run("python", "manage.py", "check", fails=fails)
    for identity, text in re.findall(r"^\?: \((django_tasklock\.\w+)\) (.*)$", said, re.MULTILINE):
        assert is_documented(identity, text), text
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


def test_check_sees_the_tasks_of_an_ordinary_project(project: Project) -> None:
    said = checked(project, fails=True)
    assert "(django_tasklock.E003) task videos.tasks.no_fence: " in said
    assert "(django_tasklock.E004) task videos.tasks.no_store: " in said
    assert "(django_tasklock.E005) task videos.tasks.small_fence: the fence field " in said
    assert "(django_tasklock.W004) task videos.tasks.no_end: " in said
    assert "tasks.right" not in said
    assert said.count("(django_tasklock.") == 5  # W001: the cache is a LocMemCache.
    assert said.count("checks run") == 1
    # So does every command that runs the checks.
    assert "no_fence" in project.run("python", "manage.py", "migrate", fails=True)
    assert "no_fence" not in project.run("python", "manage.py", "migrate", "--skip-checks")


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


@pytest.mark.parametrize("tasks", [WRONG_CLASS, FOREIGN_BASE])
def test_what_ends_the_making_of_tasks_is_an_error(project: Project, tasks: str) -> None:
    project.write("videos/tasks.py", tasks)
    said = checked(project, fails=True)
    assert "(django_tasklock.E007) Celery app 'mysite': " in said
    assert ("did you mean lock_ttl?" if tasks == WRONG_CLASS else "ValueError: not today") in said
    assert "HINT: Correct it. A worker of this app fails with this error, and shows" in said


def test_what_cannot_be_imported_is_a_warning(project: Project) -> None:
    """A web server need not have all libraries of the workers."""
    project.write("videos/tasks.py", NO_MODULE)
    said = checked(project)
    assert "W005) Celery app 'mysite': its tasks cannot be imported: ModuleNotFoundError: " in said
    assert "No module named 'no_such_library'" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        (NO_MODULE, "No module named 'no_such_library'"),
        # Of the two, one is met first
        (WRONG_TASKS, "names the argument 'video'|there is no option lock_tll"),
        (WRONG_CLASS, "there is no option lock_tll"),
        (FOREIGN_BASE, "not today"),
    ],
    ids=["module", "tasks", "class", "base"],
)
def test_a_worker_fails_over_what_its_checks_met(project: Project, tasks: str, says: str) -> None:
    """Or it would throw the messages of missing tasks away."""
    project.write("videos/tasks.py", tasks)
    said = project.run("celery", "--app", "mysite", "worker", "--pool", "solo", fails=True)
    assert re.search(says, said)
    assert "ready." not in said


def test_options_that_nothing_reads_are_an_error(project: Project) -> None:
    """The base was forgotten: the task runs, and takes no lock."""
    project.write("videos/tasks.py", NO_BASE)
    # An annotation of all tasks is meant for those that are locked.
    project.write(
        "mysite/settings.py", 'CELERY_TASK_ANNOTATIONS = {"*": {"lock_ttl": 30}}\n', append=True
    )
    said = checked(project, fails=True)
    found = re.findall(
        r"E008\) task videos\.tasks\.(\w+): no base class of it reads (.*?): .*\n.*HINT: (.*)", said
    )
    expected = {("no_base", "lock_name, on_conflict, guard"), ("ByClass", "guard")}
    assert {(task, unread) for task, unread, _ in found} == expected, said
    assert all("Add base=LockedTask" in hint for _, _, hint in found)


def test_a_guard_without_acks_late_is_a_warning_that_the_task_can_silence(project: Project) -> None:
    project.write("videos/tasks.py", EARLY)
    said = checked(project)
    warned = re.findall(
        r"W009\) task videos\.tasks\.(\w+): it has a guard and no acks_late: ", said
    )
    assert warned == ["early", "made"]
    assert "HINT: Set acks_late=True on the task, and its message comes back." in said
    # The setting of the app is as good
    project.write("mysite/settings.py", "CELERY_TASK_ACKS_LATE = True\n", append=True)
    assert "W009" not in checked(project)


def test_a_guard_that_cannot_claim_write_or_exclude_is_said(project: Project) -> None:
    project.write("videos/models.py", MODELS + GUARDED_MODELS)
    project.write("videos/tasks.py", GUARDS)
    project.write(
        "mysite/settings.py",
        'LOCAL = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}\n'
        'REDIS = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://"}\n'
        'CACHES = {"default": LOCAL, "redis": REDIS}\n'
        'TASKLOCK = {"default": {}, "redis": {"CACHE": "redis"}}\n',
        append=True,
    )
    said = checked(project, fails=True)
    found = re.findall(r"(E003|E005|W010)\) task (\w+): (.*)", said)
    assert sorted((each, task) for each, task, _ in found) == [
        ("E003", "child"), ("E003", "joins"), ("E005", "choice"), ("E005", "long"),
        ("W010", "alone"), ("W010", "beside"), ("W010", "no_fences"),
    ]  # fmt: skip
    texts = {task: text for _, task, text in found}
    assert "Guard that model" in texts["child"]
    assert "joins another table" in texts["joins"]
    assert "has no choice 'proccessing'" in texts["choice"]
    assert "its max_length is 20" in texts["long"]


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
    with_it = (
        start
        + "from django.conf import settings\nsettings.INSTALLED_APPS.append('django_tasklock')\n"
    )
    assert "Warning" not in project.run("python", "-c", with_it + task + lock)


def test_the_example_project_has_nothing_to_say() -> None:
    said = Project(ROOT).run("python", "-W", "error", "-m", "example_project.manage", "check")
    assert said == "System check identified no issues (0 silenced).\n"


def test_an_app_that_nothing_imports_is_a_warning(project: Project) -> None:
    """Its tasks would be sent to a RabbitMQ on localhost."""
    project.write("mysite/__init__.py", "")
    for views in ("import videos.tasks\n", ""):
        project.write("mysite/urls.py", f"{views}urlpatterns = []\n")
        said = checked(project)
        assert "(django_tasklock.W006) mysite.celery was not imported" in said
        assert "HINT: Import it in mysite/__init__.py: from .celery import app as" in said
    # Without Celery there is nothing to load
    (project.folder / "mysite/celery.py").unlink()
    said = checked(project)
    assert "checks run, Celery: False" in said
    assert said.count("(django_tasklock.") == 1


def test_a_worker_loads_its_tasks_once(project: Project) -> None:
    """It runs the checks before that, and these load the tasks."""
    project.write("videos/tasks.py", 'print("tasks imported")\n' + TASKS + ANOTHER_APP)
    said = project.run(
        "python", "-c", "from mysite import celery_app as app\n"
        "app.loader.import_default_modules(), app.finalize()\n"
        "from django_tasklock.celery.loading import load_tasks, locked_tasks\n"
        "from django.urls import get_script_prefix, set_script_prefix\n"
        "set_script_prefix('/of-a-request/'), load_tasks()\n"
        "print(get_script_prefix(), {'videos.tasks.right', 'another'} <= locked_tasks().keys())\n",
    )  # fmt: skip
    assert (said.count("tasks imported"), said.count("checks run")) == (1, 1)
    # A page that loads them keeps its request's prefix
    assert "/of-a-request/ True" in said
