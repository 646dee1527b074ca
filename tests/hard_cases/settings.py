"""Django settings of the workers; the harness names the servers and files in the environment."""

from __future__ import annotations

import os

SECRET_KEY = "hard-cases"
USE_TZ = True
DEBUG = False
INSTALLED_APPS = ["tests.hard_cases.site", "django_tasklock"]
INSTALLED_APPS += os.environ.get("HARD_CASES_APPS", "").split()
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("HARD_CASES_DATABASE", ":memory:"),
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;",
        },
    }
}
CACHES = {
    "default": {
        "BACKEND": os.environ.get("HARD_CASES_CACHE", "django_redis.cache.RedisCache"),
        "LOCATION": os.environ.get("HARD_CASES_LOCKS", "redis://127.0.0.1:1/0"),
        "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 1, "SOCKET_TIMEOUT": 1},
        "KEY_FUNCTION": os.environ.get("HARD_CASES_KEY_FUNCTION"),
    }
}
TASKLOCK = {
    "default": {
        "CACHE": "default",
        "TTL": 30,
        "OPTIONS": {"TAKEOVER": os.environ.get("HARD_CASES_TAKEOVER", "on") == "on"},
    }
}
