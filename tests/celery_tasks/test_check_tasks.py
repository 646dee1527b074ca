"""System checks of an ordinary project's tasks, which are loaded as a worker loads them."""

from __future__ import annotations

from pathlib import Path

import pytest

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
from django.db import models

class Video(models.Model):
    status = models.CharField(max_length=20, default="uploaded")
    views = models.IntegerField(null=True)
"""
TASKS = """
from celery import shared_task
from django_tasklock.celery import LockedTask
from django_tasklock.guards import StatusGuard

GUARD = dict(pk="video_id", source="uploaded", to="processing", done="ready")

@shared_task(base=LockedTask, guard=StatusGuard("videos.Video", fence_field="lock_fence", **GUARD))
def no_fence(video_id): ...

@shared_task(base=LockedTask, guard=StatusGuard("videos.Video", fence_field="views", **GUARD))
def small_fence(video_id): ...

@shared_task(base=LockedTask, lock_store="nowhere")
def no_store(video_id): ...

@shared_task(base=LockedTask, lock_renew=False)
def no_end(video_id): ...

@shared_task(base=LockedTask, guard=StatusGuard("videos.Video", **GUARD))
def right(video_id): ...
"""
OWN_TASK = """
from mysite.celery import app
from django_tasklock.celery import LockedTask

@app.task(base=LockedTask, lock_tll=5)
def wrong(): ...
"""
COUNT = """
from django.apps import AppConfig
from django.core.checks import register

class VideosConfig(AppConfig):
    name = "videos"

    def ready(self):
        register(lambda **_: print("checks run") or [], "counted")
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.run("django-admin", "startproject", "mysite", ".")
    project.write("mysite/settings.py", SETTINGS, append=True)
    project.write("mysite/celery.py", CELERY)
    project.write("mysite/__init__.py", "from .celery import app as celery_app\n")
    project.write("videos/__init__.py", "")
    project.write("videos/models.py", MODELS)
    project.write("videos/apps.py", COUNT)
    project.write("videos/tasks.py", TASKS)
    return project


def test_check_sees_the_tasks_of_an_ordinary_project(project: Project) -> None:
    said = project.run("python", "manage.py", "check", fails=True)
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


def test_correct_tasks_give_no_message(project: Project) -> None:
    project.write("videos/tasks.py", TASKS.partition("@shared_task")[0])
    said = project.run("python", "manage.py", "check")
    assert said.count("(django_tasklock.") == 1
    assert "W001" in said


def test_what_cannot_be_loaded_is_a_warning(project: Project) -> None:
    project.write("videos/tasks.py", "import no_such_library\n")
    said = project.run("python", "manage.py", "check")
    assert "(django_tasklock.W005) Tasks of the Celery app 'mysite' cannot be loaded" in said
    assert "ModuleNotFoundError: No module named 'no_such_library'" in said
    assert "HINT: A worker fails with the same error: celery --app mysite worker" in said
    project.run("python", "manage.py", "migrate")


def test_a_wrong_option_is_reported(project: Project) -> None:
    project.write("videos/tasks.py", TASKS.replace("lock_renew=False", "lock_tll=5"))
    said = project.run("python", "manage.py", "check", fails=True)
    assert "(django_tasklock.W005) A task of the Celery app 'mysite' cannot be made" in said
    assert "there is no option lock_tll; did you mean lock_ttl?" in said
    assert "no_fence" in said, "the others are checked all the same"
    assert "no_store" in said


def test_every_task_that_cannot_be_made_is_reported_once(project: Project) -> None:
    """Celery makes the tasks in the order of a set, and stops at the first of these."""
    wrong = TASKS.replace("lock_renew=False", "lock_tll=5").replace('"nowhere"', "5")
    project.write("videos/tasks.py", wrong + OWN_TASK)
    said = project.run("python", "manage.py", "check", fails=True)
    assert said.count("W005") == 3
    assert said.count("task videos.tasks.no_end: there is no option lock_tll;") == 1
    assert said.count("task videos.tasks.no_store: lock_store is an alias, not 5") == 1
    assert said.count("task videos.tasks.wrong: there is no option lock_tll;") == 1
    assert "(django_tasklock.E003) task videos.tasks.no_fence: " in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tasks", "error"),
    [
        ("import no_such_library", "No module named 'no_such_library'"),
        (TASKS.replace("lock_renew=False", "lock_tll=5"), "there is no option lock_tll"),
        (
            OWN_TASK,
            "there is no option lock_tll",
        ),
    ],
    ids=["import", "shared", "own"],
)
def test_a_worker_fails_over_what_its_checks_met(project: Project, tasks: str, error: str) -> None:
    """Or it would throw the messages of missing tasks away."""
    project.write("videos/tasks.py", tasks)
    said = project.run("celery", "--app", "mysite", "worker", "--pool", "solo", fails=True)
    assert error in said
    assert "ready." not in said


def test_an_app_that_nothing_imports_is_a_warning(project: Project) -> None:
    """Its tasks would be sent to a RabbitMQ on localhost."""
    project.write("mysite/__init__.py", "")
    for views in ("", "import videos.tasks\n"):
        project.write("mysite/urls.py", f"{views}urlpatterns = []\n")
        said = project.run("python", "manage.py", "check")
        assert "(django_tasklock.W006) mysite.celery was not imported" in said
        assert "HINT: Import it in mysite/__init__.py: from .celery import app as" in said
    project.write("mysite/settings.py", "import mysite.celery\n", append=True)
    assert "W006" not in project.run("python", "manage.py", "check", fails=True)


def test_without_celery_there_is_nothing_to_load(project: Project) -> None:
    (project.folder / "mysite/celery.py").unlink()
    project.write("mysite/__init__.py", "")
    project.write("videos/apps.py", COUNT.replace("print(", "print('celery' in sys.modules, "))
    project.write(
        "videos/apps.py", "import sys\n" + (project.folder / "videos/apps.py").read_text()
    )
    said = project.run("python", "manage.py", "check")
    assert "False checks run" in said
    assert said.count("(django_tasklock.") == 1


def test_a_worker_loads_its_tasks_once(project: Project) -> None:
    """It runs the checks before that, and these load the tasks."""
    project.write("videos/tasks.py", 'print("tasks imported")\n' + TASKS)
    said = project.run(
        "python", "-c", "from mysite import celery_app as app\n"
        "app.loader.import_default_modules()\napp.finalize()\n"
        'print(sorted(name for name in app.tasks if "videos" in name))',
    )  # fmt: skip
    assert said.count("tasks imported") == 1
    assert said.count("checks run") == 1
    assert "videos.tasks.no_fence" in said
