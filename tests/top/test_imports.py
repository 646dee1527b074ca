"""What is loaded when, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

SITE = """
import sys, django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_tasklock"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://x"}},
)
"""


def loaded_after(code: str) -> set[str]:
    """The package's modules that a site has after ``code``."""
    shown = "\nprint(*(name for name in sys.modules if name.startswith('django_tasklock')))"
    done = subprocess.run(
        [sys.executable, "-c", SITE + code + shown], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_a_process_that_takes_no_lock_loads_none_of_it() -> None:
    loaded = loaded_after("import django_tasklock; django.setup()")
    assert "django_tasklock.apps" in loaded
    for part in ("_engine", "stores", "celery", "guards", "checks", "admin"):
        assert not {name for name in loaded if name.startswith(f"django_tasklock.{part}")}


def test_a_lock_needs_no_celery() -> None:
    loaded = loaded_after("django.setup(); from django_tasklock import lock, locks")
    assert "django_tasklock._engine.service" in loaded
    assert not {name for name in loaded if name.startswith("django_tasklock.celery")}


def test_every_public_name_is_there_whoever_asks_and_how() -> None:
    loaded_after(
        "import importlib, pickle\n"
        "import django_tasklock.exceptions as exceptions\n"
        "import django_tasklock\ndjango.setup()\n"
        "assert set(django_tasklock.__all__) <= set(dir(django_tasklock))\n"
        "starred = {}\n"
        "exec('from django_tasklock import *', starred)\n"
        "assert set(django_tasklock.__all__) <= set(starred)\n"
        "importlib.reload(django_tasklock)\n"
        "for name in django_tasklock.__all__:\n"
        "    value = getattr(django_tasklock, name)\n"
        "    assert value is starred[name], name\n"
        "    if isinstance(value, type):\n"
        "        assert pickle.loads(pickle.dumps(value)) is value\n"
        "assert exceptions.LeaseLost is django_tasklock.LeaseLost\n"
        "assert not hasattr(django_tasklock, 'unlock')\n"
    )
