"""Django settings of the workers; the stage names the servers and files in the environment."""

from __future__ import annotations

import json
import os
from typing import Any

SECRET_KEY = "stage"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
# Many tasks here have one guard.
SILENCED_SYSTEM_CHECKS = ["django_tasklock.W013"]
DEBUG = False
INSTALLED_APPS = ["tests.stage", "django_tasklock"]
INSTALLED_APPS += os.environ.get("STAGE_APPS", "").split()
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("STAGE_DATABASE", ":memory:"),
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;",
        },
    }
}
CACHES = {
    "default": {
        "BACKEND": os.environ.get("STAGE_CACHE", "django_redis.cache.RedisCache"),
        "LOCATION": os.environ.get("STAGE_LOCKS", "redis://127.0.0.1:1/0"),
        "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 1, "SOCKET_TIMEOUT": 1},
        "KEY_FUNCTION": os.environ.get("STAGE_KEY_FUNCTION"),
    }
}
TASKLOCK: dict[str, Any] = {
    "default": {
        "CACHE": "default",
        "TTL": 30,
        "OPTIONS": {"TAKEOVER": os.environ.get("STAGE_TAKEOVER", "on") == "on"},
    }
}
# Other stores, and what they are made of, of a test.
for name, more in json.loads(os.environ.get("STAGE_STORES", "{}")).items():
    globals()[name].update(more)
