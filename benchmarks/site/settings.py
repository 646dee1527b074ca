"""Settings: the Redis is named by the environment, so that every child process has the same."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from typing import Any

REDIS_URL = os.environ.get("BENCHMARK_REDIS_URL", "redis://127.0.0.1:6379/0")

SECRET_KEY = "for the benchmarks alone"
INSTALLED_APPS = [
    "django_tasklock", "benchmarks.site", "django.contrib.admin", "django.contrib.auth",
    "django.contrib.contenttypes", "django.contrib.messages",
]  # fmt: skip
ROOT_URLCONF = "benchmarks.site.urls"
STATIC_URL = "static/"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES: dict[str, Any] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("BENCHMARK_DATABASE", ":memory:"),
        "OPTIONS": {"timeout": 30, "init_command": "PRAGMA journal_mode=WAL;"},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CACHES: dict[str, Any] = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": REDIS_URL,
        "TIMEOUT": None,
    }
}
TASKLOCK: dict[str, Any] = {
    "default": {"TTL": 60},
    # As seen from another machine, where nobody can tell whether the owner still lives.
    "elsewhere": {"TTL": 60, "OPTIONS": {"TAKEOVER": False}},
    # The same locks, with a history of what happened to them and without.
    "recorded": {"TTL": 60, "OPTIONS": {"HISTORY": 10_000}},
    "unrecorded": {"TTL": 60, "OPTIONS": {"HISTORY": 0}},
}
# More databases, caches, stores and apps, for the workload that compares the stores.
MORE: dict[str, Any] = json.loads(os.environ.get("BENCHMARK_MORE", "{}"))
DATABASES |= MORE.get("DATABASES", {})
CACHES |= MORE.get("CACHES", {})
TASKLOCK |= MORE.get("TASKLOCK", {})
INSTALLED_APPS += MORE.get("INSTALLED_APPS", [])
if find_spec("pymysql") and not find_spec("MySQLdb"):
    import pymysql

    pymysql.install_as_MySQLdb()
USE_TZ = True
