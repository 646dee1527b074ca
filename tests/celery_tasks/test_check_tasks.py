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
NO_MODULE = "import no_such_library\n"
WRONG_SHARED = TASKS.replace("lock_renew=False", "lock_tll=5")
WRONG_OWN = """
from mysite.celery import app
from django_tasklock.celery import LockedTask

@app.task(base=LockedTask, lock_tll=5)
def wrong(): ...

@app.task(base=LockedTask, lock_tll=5)
def as_wrong(): ...
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
    project.write("videos/tasks.py", TASKS)
    return project


def test_check_sees_the_tasks_of_an_ordinary_project(project: Project) -> None:
    """Also beside some that cannot be made: Celery stops at the first of these."""
    project.write("videos/tasks.py", WRONG_OWN, append=True)
    said = project.run("python", "manage.py", "check", fails=True)
    assert "(django_tasklock.E003) task videos.tasks.no_fence: " in said
    assert "(django_tasklock.E004) task videos.tasks.no_store: " in said
    assert "(django_tasklock.E005) task videos.tasks.small_fence: the fence field " in said
    assert "(django_tasklock.W004) task videos.tasks.no_end: " in said
    assert "W005) A task of the Celery app 'mysite' cannot be made, and is not checked: " in said
    assert "there is no option lock_tll; did you mean lock_ttl?" in said
    assert "HINT: A worker fails with the same error: celery --app mysite worker" in said
    assert "tasks.right" not in said
    assert said.count("(django_tasklock.") == 6  # W001: the cache is a LocMemCache.
    assert said.count("checks run") == 1
    # So does every command that runs the checks.
    assert "no_fence" in project.run("python", "manage.py", "migrate", fails=True)
    assert "no_fence" not in project.run("python", "manage.py", "migrate", "--skip-checks")


def test_what_cannot_be_imported_is_a_warning(project: Project) -> None:
    project.write("videos/tasks.py", NO_MODULE)
    said = project.run("python", "manage.py", "check")
    assert "W005) Tasks of the Celery app 'mysite' cannot be loaded, and are not checked" in said
    assert "ModuleNotFoundError: No module named 'no_such_library'" in said


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [NO_MODULE, WRONG_SHARED, WRONG_OWN])
def test_a_worker_fails_over_what_its_checks_met(project: Project, tasks: str) -> None:
    """Or it would throw the messages of missing tasks away."""
    project.write("videos/tasks.py", tasks)
    said = project.run("celery", "--app", "mysite", "worker", "--pool", "solo", fails=True)
    assert ("no_such_library" if tasks == NO_MODULE else "there is no option lock_tll") in said
    assert "ready." not in said


def test_an_app_that_nothing_imports_is_a_warning(project: Project) -> None:
    """Its tasks would be sent to a RabbitMQ on localhost."""
    project.write("mysite/__init__.py", "")
    for views in ("import videos.tasks\n", ""):
        project.write("mysite/urls.py", f"{views}urlpatterns = []\n")
        said = project.run("python", "manage.py", "check")
        assert "(django_tasklock.W006) mysite.celery was not imported" in said
        assert "HINT: Import it in mysite/__init__.py: from .celery import app as" in said
    # Without Celery there is nothing to load
    (project.folder / "mysite/celery.py").unlink()
    said = project.run("python", "manage.py", "check")
    assert "checks run, Celery: False" in said
    assert said.count("(django_tasklock.") == 1


def test_a_worker_loads_its_tasks_once(project: Project) -> None:
    """It runs the checks before that, and these load the tasks."""
    project.write("videos/tasks.py", 'print("tasks imported")\n' + TASKS)
    said = project.run(
        "python", "-c", "from mysite import celery_app as app\n"
        "app.loader.import_default_modules(), app.finalize()\n"
        "from django.urls import get_script_prefix, set_script_prefix\n"
        "from django_tasklock.celery.project_tasks import load_tasks\n"
        "set_script_prefix('/of-a-request/'), load_tasks()\n"
        "print(get_script_prefix(), 'videos.tasks.right' in app.tasks)\n",
    )  # fmt: skip
    assert (said.count("tasks imported"), said.count("checks run")) == (1, 1)
    # A page that loads them keeps its request's prefix
    assert "/of-a-request/ True" in said
