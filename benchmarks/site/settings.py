"""Settings: the Redis is named by the environment, so that every child process has the same."""

from __future__ import annotations

import os
from typing import Any

REDIS_URL = os.environ.get("BENCHMARK_REDIS_URL", "redis://127.0.0.1:6379/0")

SECRET_KEY = "for the benchmarks alone"
INSTALLED_APPS = [
    "django_tasklock", "benchmarks.site", "django.contrib.auth", "django.contrib.contenttypes",
]  # fmt: skip
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("BENCHMARK_DATABASE", ":memory:"),
        "OPTIONS": {"timeout": 30, "init_command": "PRAGMA journal_mode=WAL;"},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": REDIS_URL}}
TASKLOCK: dict[str, Any] = {
    "default": {"TTL": 60},
    # As seen from another machine, where nobody can tell whether the owner still lives.
    "elsewhere": {"TTL": 60, "OPTIONS": {"TAKEOVER": False}},
    # For the list: stores of different sizes on one Redis.
    "few": {"KEY_PREFIX": "few"},
    "many": {"KEY_PREFIX": "many"},
}
USE_TZ = True
