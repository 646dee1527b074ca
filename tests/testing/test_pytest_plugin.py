"""The fixture ``tasklock``, in projects of their own, with pytest as it is started there."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests import needs
from tests.nights import by_day
from tests.projects import Project

pytestmark = pytest.mark.slow
MakeProject = Callable[..., Project]

SETTINGS = """
SECRET_KEY = "only-for-the-tests"
INSTALLED_APPS = ["django_tasklock"]
USE_TZ = True
# Nobody listens there: a test that used it would fail.
NOWHERE = "redis://127.0.0.1:1"
CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": NOWHERE}}
TASKLOCK = {"default": {"TTL": 5}, "other": {"KEY_PREFIX": "other"}}
"""

TESTS = """
import pytest

from django_tasklock import StoreUnavailable, lock, locks


def test_locks_are_in_memory(tasklock):
    locks.acquire("left-behind")
    with lock("video:1"):
        tasklock.assert_locked("video:1")
    tasklock.assert_not_locked("video:1")
    with tasklock.held("video:1", by="worker-7", store="other"):
        assert locks.using("other").get("video:1").owner.host == "worker-7"


def test_nothing_is_left_of_the_last_test(tasklock):
    assert locks.list() == [] and locks.using("other").list() == []


def test_an_outage(tasklock):
    with tasklock.outage(), pytest.raises(StoreUnavailable):
        locks.acquire("video:1")
    assert locks.acquire("video:1")
    tasklock.clear()
    tasklock.assert_not_locked("video:1")


def test_without_it_the_settings_count():
    with pytest.raises(StoreUnavailable):
        locks.acquire("video:1")
"""

EARLY = """
import sys

from django.conf import settings

EARLY = sorted(
    name for name in sys.modules
    if name in ("django_tasklock.models", "django_tasklock.testing", "celery", "redis")
)


def test_nothing_was_imported_early_that_needs_settings_or_takes_long():
    assert EARLY == []
    assert not settings.configured
"""


@pytest.fixture
def project(tmp_path: Path) -> MakeProject:
    """``project(**files)``: a project with these files."""
    if not entry_points(group="pytest11", name="tasklock"):
        needs.missing("django-tasklock was installed without its pytest plugin: install it again")

    def make(**files: str) -> Project:
        made = Project(tmp_path)
        made.environment["PYTHONPATH"] = str(tmp_path)
        for name, text in files.items():
            made.write(f"{name}.py", text)
        return made

    return make


PYTEST = ("pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider")


def in_pytest(project: Project, *options: str) -> str:
    return project.run("python", "-m", *PYTEST, *options)


@pytest.mark.parametrize("options", by_day([], ["-n", "2", "-W", "error"]))
def test_with_pytest_django(project: MakeProject, options: list[str]) -> None:
    """Also under xdist, and where warnings are errors."""
    # Given a project whose Redis does not run, I expect tests with the fixture to have locks
    made = project(settings=SETTINGS, test_locks=TESTS)
    assert "4 passed" in in_pytest(made, "--ds", "settings", *options)


@pytest.mark.nightly
def test_without_pytest_django(project: MakeProject) -> None:
    conftest = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django
django.setup()
"""
    made = project(settings=SETTINGS, test_locks=TESTS, conftest=conftest)
    assert "4 passed" in in_pytest(made, "-p", "no:django")


def test_a_project_without_settings_does_not_notice_it(project: MakeProject) -> None:
    # conftest.py is imported after all plugins, and before any test.
    made = project(conftest=EARLY, test_all="from conftest import *")
    assert "1 passed" in in_pytest(made, "-p", "no:django", "-W", "error")
