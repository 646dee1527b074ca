"""The example site without Redis: what differs from `example_project.settings`.

The locks are in a database, and so is whatever the site keeps. Celery's messages and results are
files, for that needs no server; a real site has RabbitMQ or another broker there.
"""

from __future__ import annotations

import os

from example_project.file_broker import options_for
from example_project.settings import *  # noqa: F403
from example_project.settings import DATABASES, STATE_DIR

# (*) SQLite has one writer at a time: the locks have a file of their own, so that they never wait
# for the site's transactions. Make its tables by: manage.py migrate --database=locks
DATABASES["locks"] = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": STATE_DIR / "locks.sqlite3",
    "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"},
}
TASKLOCK = {
    "default": {  # (*)
        "BACKEND": "django_tasklock.stores.database.DatabaseStore",
        "TTL": 60,
        "OPTIONS": {"DATABASE": "locks"},
    },
}
if os.environ.get("TASKLOCK_DISABLED_FOR_TESTS"):
    TASKLOCK["default"] = {"BACKEND": "example_project.no_locks.NoLocks"}
# Of all processes, so that one of them computes what the others find there.
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.filebased.FileBasedCache",
        "LOCATION": str(STATE_DIR / "cache"),
    },
}

CELERY_BROKER_URL = "filesystem://"
CELERY_BROKER_TRANSPORT = "example_project.file_broker:Transport"
CELERY_BROKER_TRANSPORT_OPTIONS = options_for(STATE_DIR / "broker")
RESULTS = STATE_DIR / "results"
RESULTS.mkdir(parents=True, exist_ok=True)
CELERY_RESULT_BACKEND = f"file://{RESULTS}"
CELERY_RESULT_BACKEND_TRANSPORT_OPTIONS = {}
# The filesystem transport has no event loop, and without one a worker puts a killed child's message
# back only after so many seconds; by default 10.
CELERY_WORKER_LOST_WAIT = 1
