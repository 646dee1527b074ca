"""The apps are optional: nothing imports them, or their libraries, unless they are installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

APPS = {"prometheus": "prometheus_client", "opentelemetry": "opentelemetry"}
BEGIN = """
import json, sys
from django.conf import settings
from tests import settings as of_tests

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in json.loads(sys.argv[2]):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refusing())
known = {name: value for name, value in vars(of_tests).items() if name.isupper()}
known["INSTALLED_APPS"] = [*of_tests.INSTALLED_APPS, *json.loads(sys.argv[1])]
settings.configure(**known)
"""
PLAIN = """
import django_tasklock, django_tasklock.celery
import django
django.setup()
from django.core.management import call_command
call_command("locks", "metrics", "--no-rows")
print(json.dumps([name for name in sys.modules if name.startswith((
    "prometheus_client", "opentelemetry", "django_tasklock.contrib"))]))
"""
INSTALLED = """
import django
django.setup()
from django.core.management import call_command
from django_tasklock import signals
call_command("check")
call_command("makemigrations", "--check", "--dry-run", verbosity=0)
print(json.dumps(len(signals.lock_acquired.receivers)))
"""


def last_line(source: str, apps: list[str], refused: list[str]) -> str:
    """What a process with these apps prints last; its error, if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + source, json.dumps(apps), json.dumps(refused)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1]


def test_the_package_and_its_command_import_neither_the_apps_nor_their_libraries() -> None:
    assert last_line(PLAIN, [], []) == "[]"


def test_a_site_without_the_libraries_works() -> None:
    assert last_line(PLAIN, [], list(APPS.values())) == "[]"


@pytest.mark.parametrize(("app", "receivers"), [("prometheus", 1), ("opentelemetry", 2)])
def test_an_app_that_is_installed_listens(app: str, receivers: int) -> None:
    needs.package(APPS[app])
    assert last_line(INSTALLED, [f"django_tasklock.contrib.{app}"], []) == str(receivers)


@pytest.mark.parametrize("app", APPS)
def test_an_app_without_its_library_says_what_to_install(app: str) -> None:
    said = last_line(INSTALLED, [f"django_tasklock.contrib.{app}"], [APPS[app]])
    assert "ImproperlyConfigured" in said
    assert f'pip install "django-tasklock[{app}]"' in said


def test_each_app_has_an_extra_of_its_name() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    extras = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    assert set(APPS) <= set(re.findall(r"^(\w+) = ", extras, re.MULTILINE))
