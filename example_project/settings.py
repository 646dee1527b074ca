"""Settings of the example site. What a project of yours needs is marked with (*)."""

from __future__ import annotations

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
STATE_DIR = Path(os.environ.get("EXAMPLE_STATE", BASE_DIR / ".serve"))
REDIS_URL = os.environ.get("EXAMPLE_REDIS_URL", "redis://127.0.0.1:6379/0")
REDIS_PREFIX = os.environ.get("EXAMPLE_REDIS_PREFIX", "example")

SECRET_KEY = os.environ.get("EXAMPLE_SECRET_KEY", "only-for-the-example-on-localhost")
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]", "testserver"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_tasklock",  # (*)
    "example_project.videos",
    "example_project.uses",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "example_project.urls"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# SQLite carries several writers (the site, and every child of every worker) when readers do not
# block them (WAL) and a transaction asks for the write lock at its start, where it may wait.
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": STATE_DIR / "db.sqlite3",
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    },
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CACHES = {
    "default": {  # (*)
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": REDIS_PREFIX,
        # (*) Before version 8 redis-py waits for ever for a server that hangs.
        "OPTIONS": {"SOCKET_TIMEOUT": 5, "SOCKET_CONNECT_TIMEOUT": 5},
    },
}
TASKLOCK = {"default": {"CACHE": "default", "TTL": 60}}  # (*) absent, it means the default cache
if os.environ.get("TASKLOCK_DISABLED_FOR_TESTS"):
    TASKLOCK["default"]["BACKEND"] = "example_project.no_locks.NoLocks"

CELERY_BROKER_URL = REDIS_URL
CELERY_RESULT_BACKEND = REDIS_URL
CELERY_BROKER_TRANSPORT_OPTIONS = {"global_keyprefix": f"{REDIS_PREFIX}:celery:"}
CELERY_RESULT_BACKEND_TRANSPORT_OPTIONS = {"global_keyprefix": f"{REDIS_PREFIX}:celery:"}
CELERY_RESULT_EXPIRES = 3600
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# (*) A worker takes one message for each free child, so that no job waits behind a long one
# while a child elsewhere has nothing to do.
CELERY_WORKER_PREFETCH_MULTIPLIER = 1

MEDIA_ROOT = STATE_DIR / "media"
MEDIA_URL = "/media/"
STATIC_URL = "/static/"
FILE_UPLOAD_PERMISSIONS = 0o644

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
