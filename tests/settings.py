"""Settings of the tests; everything about caches and locks is overridden by the test itself.

Processes that a test starts find its database by ``TASKLOCK_TEST_DATABASE`` (see the fixture
``process_env``), databases that the test brought along by ``TASKLOCK_TEST_DATABASES`` (JSON), and
its caches by ``TASKLOCK_TEST_CACHES`` and ``TASKLOCK_TEST_TASKLOCK`` (JSON).
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

SECRET_KEY = "only-for-the-tests"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = os.environ.get("TASKLOCK_TEST_URLCONF", "tests.urls")
STATIC_URL = "/static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

CONTRIB = ("admin", "auth", "contenttypes", "sessions", "messages", "staticfiles")
INSTALLED_APPS = [*(f"django.contrib.{name}" for name in CONTRIB), "django_tasklock", "tests.app"]

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
PROCESSORS = [
    "django.template.context_processors.request",
    "django.contrib.auth.context_processors.auth",
    "django.contrib.messages.context_processors.messages",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {"context_processors": PROCESSORS},
    },
]

# A file, because threads and other processes take part in the tests.
DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("TASKLOCK_TEST_DATABASE", ":memory:"),
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF",
        },
        "TEST": {"NAME": str(Path(tempfile.gettempdir(), f"tasklock-{os.getpid()}.sqlite3"))},
    },
}

DATABASES |= json.loads(os.environ.get("TASKLOCK_TEST_DATABASES", "{}"))

CACHES: dict[str, dict[str, Any]] = json.loads(
    os.environ.get(
        "TASKLOCK_TEST_CACHES",
        '{"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}',
    )
)

if "TASKLOCK_TEST_TASKLOCK" in os.environ:
    TASKLOCK: dict[str, dict[str, Any]] = json.loads(os.environ["TASKLOCK_TEST_TASKLOCK"])
