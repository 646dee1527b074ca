"""Django settings of the workers and of the conductor, which names the servers."""

from __future__ import annotations

import json
import os

SECRET_KEY = "chaos-tasks"
USE_TZ = True
DEBUG = False
INSTALLED_APPS = ["tests.chaos_tasks.rows", "django_tasklock"]
DATABASES = {
    "default": json.loads(
        os.environ.get(
            "CHAOS_TASKS_DATABASE", '{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}'
        )
    )
}
CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": os.environ.get("CHAOS_TASKS_LOCKS", "redis://127.0.0.1:1/0"),
        "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 2, "SOCKET_TIMEOUT": 2},
    }
}
TASKLOCK = {"default": {"CACHE": "default", "TTL": 5}}
