"""What the package exports: loaded when it is used, typed, and errors that any serializer takes.

What is installed is what was written: Lua, templates, static files and types included.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from django.core.exceptions import ImproperlyConfigured

import django_tasklock
from django_tasklock import LockInfo, Owner, exceptions, lock
from django_tasklock.celery import LockedTask
from django_tasklock.tasks import locked
from django_tasklock.views import lock_view
from tests import needs

ROOT = Path(__file__).parents[2]
USES = str(ROOT / "tests" / "typed_uses.py")
SITE = """
import sys, django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_tasklock"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://x"}},
)
"""
CELERY = "import celery; celery.Celery().Task"
INFO = LockInfo(
    "video:1", 12.5, datetime.now(timezone.utc), "t" * 22, Owner("host", 7), "default", "key", 5, 2
)
ERRORS = [
    exceptions.TaskLockError("it"),
    exceptions.LockNotAcquired("video:1", INFO),
    exceptions.LeaseLost("video:1", "its ttl ran out"),
    exceptions.StoreUnavailable("default", "connection refused"),
    exceptions.ListingNotSupported("default"),
    exceptions.StatusConflict("videos.Video", 7),
    exceptions.InvalidLockConfig("wrong"),
    exceptions.AlreadyQueued("job", INFO, "id-1"),
    exceptions.TooManyAttempts("videos.process", "id-1", 5),
    exceptions.RequeueFailed("videos.process", "id-1", "not JSON serializable"),
]


def loaded_after(code: str, site: str = SITE) -> set[str]:
    """The modules that a site has after ``code``, which runs in a process of its own."""
    shown = "\nprint(*sys.modules)"
    said = subprocess.check_output([sys.executable, "-c", site + code + shown], text=True)
    return {*said.split()}


def test_a_process_loads_what_it_uses() -> None:
    # Given a site with the app installed
    loaded = loaded_after("import django_tasklock; django.setup()")

    # I expect it to load nothing that it does not use
    assert "django_tasklock.apps" in loaded
    for part in ("_engine", "stores", "celery", "guards", "checks", "admin"):
        assert f"django_tasklock.{part}" not in loaded

    # And a lock to need no Celery
    loaded = loaded_after("django.setup(); from django_tasklock import lock, locks")
    assert "django_tasklock._engine.service" in loaded
    assert "django_tasklock.celery" not in loaded


@pytest.mark.parametrize(
    ("before", "code", "most"),
    [
        ("", "", 15),
        ("", "from django_tasklock import lock", 46),
        (CELERY, "from django_tasklock.celery import LockedTask", 71),
    ],
    ids=["the app", "a lock", "a task"],
)
def test_few_modules_come_beside_those_of_django_and_celery(
    before: str, code: str, most: int
) -> None:
    # Given what a site without the app has loaded
    without = SITE.replace(', "django_tasklock"', "")
    others = loaded_after(f"django.setup(); {before}", without)

    # I expect the app to add few modules: each is time at the start of each process
    added = loaded_after(f"django.setup(); {before}\n{code}") - others
    assert "django_tasklock.apps" in added
    assert len(added) <= most, sorted(added)

    # And none of Python's that takes long, or of other packages
    theirs = {name for name in added if not name.startswith(("django_tasklock", "celery."))}
    assert theirs <= {"__future__", "mmap"}


def test_public_names_are_all_there_is_whoever_asks_and_how() -> None:
    promised = ["lock", "locks", "Event", "Lease", "LockInfo", "LockService", "Owner", "make_name"]
    promised += ["AcquireAllOptions", "AcquireOptions", "LockContext", "LockOptions"]
    promised += ["SkippingDecorator", *exceptions.__all__]
    assert sorted(django_tasklock.__all__) == sorted(promised)
    assert {type(error).__name__ for error in ERRORS} == {*exceptions.__all__}
    starred: dict[str, Any] = {}
    exec("from django_tasklock import *", starred)
    for name in promised:
        value = getattr(django_tasklock, name)
        assert value is starred[name]
        assert name in dir(django_tasklock)
        assert not isinstance(value, type) or pickle.loads(pickle.dumps(value)) is value


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_and_can_be_read_from_results_that_are_json(
    error: Exception,
) -> None:
    wrong = isinstance(error, exceptions.InvalidLockConfig)
    assert isinstance(error, ImproperlyConfigured if wrong else exceptions.TaskLockError)
    assert type(error).__name__ in str(exceptions.__doc__), "its tree is drawn there"
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is type(error)
        assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
    # Celery stores its arguments, and those that JSON cannot hold as text.
    backend = Celery(set_as_current=False, backend="cache+memory://").backend
    stored = json.loads(json.dumps(backend.prepare_exception(error, "json")))
    again = backend.exception_to_python(stored)
    assert type(again) is type(error)
    lost = type(error) is exceptions.LockNotAcquired  # who holds the lock
    assert str(again) == ("the lock 'video:1' is taken" if lost else str(error))


# Without the plugin for Django's models, which a project may not have. What is not needed for the
# uses is not looked at: `make lint` does that. The cache is kept: only the first run takes long.
MYPY = ["--strict", "--config-file=", "--follow-imports=silent", "--warn-unreachable"]
MYPY += [f"--cache-dir={tempfile.gettempdir()}/tasklock-types-{os.getuid()}", USES]
PYRIGHT = {
    "include": [USES],
    "extraPaths": [str(ROOT)],
    "typeCheckingMode": "strict",
    # Those are mypy's. A mistake that is none is an error.
    "enableTypeIgnoreComments": False,
    "reportUnnecessaryTypeIgnoreComment": "error",
    "reportMissingModuleSource": False,  # Django 5.2 has no tasks.
}


@pytest.mark.parametrize("tool", ["mypy", "basedpyright"])
def test_a_type_checker_accepts_the_uses_and_refuses_the_mistakes(
    tool: str, tmp_path: Path
) -> None:
    needs.package(tool)
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps(PYRIGHT))
    arguments = [f"--project={config}", f"--pythonpath={sys.executable}"]
    said = subprocess.run(
        [sys.executable, "-m", tool, *(MYPY if tool == "mypy" else arguments)], cwd=ROOT,
        env=os.environ | {"MYPYPATH": str(ROOT)}, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr


def locked_task(function: Callable[..., Any]) -> Any:
    return Celery(set_as_current=False).task(base=LockedTask, lock_name="video:{video}")(function)


def work(video: Video) -> Result:  # type: ignore[name-defined]  # noqa: F821
    """These may be names that only type checkers import."""


@pytest.mark.parametrize(
    "decorate",
    [lock("video:{video}"), lock_view("video:{video}"), locked("video:{video}"), locked_task],
)
def test_values_of_annotations_are_not_needed(decorate: Callable[..., Any]) -> None:
    assert decorate(work).__name__ == "work"


@pytest.mark.slow
def test_what_is_published_holds_all_that_is_needed_and_nothing_else(tmp_path: Path) -> None:
    # Given a source distribution of this project, and a wheel that is built from that
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path)]
    done = subprocess.run(
        [*build, str(ROOT)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    (wheel,), (source,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    written = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "django_tasklock").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        (info,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata, _, page = archive.read(info).decode().partition("\n\n")
    with tarfile.open(source) as sources:
        given = {name.partition("/")[2] for name in sources.getnames()}

    # I expect the wheel to hold every file of the package, and to need what it says it needs
    assert packed == written
    assert {Path(name).suffix for name in packed} >= {".py", ".lua", ".html", ".typed", ".css"}
    always = re.findall(r"^Requires-Dist: ([\w-]+)(?!.*;)", metadata, re.MULTILINE)
    assert f"\nVersion: {django_tasklock.__version__}\n" in metadata
    assert {*always} == {"asgiref", "celery", "django", "django-redis", "redis"}

    # And no link of its page on PyPI to lead nowhere, nor a checkout to be needed
    assert "pip install django-tasklock" in page
    assert re.findall(r"\]\((?!https?:|#)", page) == []
    assert "checkout" not in page

    # And the source to be enough to change, test and build it: no file of the project is missing
    assert given >= {*written, ".ci/run", "example_project/manage.py", "docs/conf.py", "Makefile"}
    assert given >= {path.name for path in ROOT.iterdir() if path.suffix in (".md", ".toml")}
    assert given >= {".github/workflows/ci.yml", "tests/settings.py", "benchmarks/requirements.txt"}
    assert not {name for name in given if re.search(r"__pycache__|\.venv|\.sqlite3$|\.log$", name)}


def test_each_python_that_is_promised_is_one_of_the_workflows() -> None:
    promised = (ROOT / "pyproject.toml").read_text("utf-8")
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    (tried,) = re.findall(r"^ +python: \[(.*)\]$", workflow, re.MULTILINE)
    listed = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', promised)
    assert re.findall(r'"(.*?)"', tried) == listed
    assert f'requires-python = ">={listed[0]}"' in promised
