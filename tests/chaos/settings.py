"""Django settings of the players and of the conductor, which names the server and who asks."""

from __future__ import annotations

import os

from tests.chaos.bounds import SOCKET_TIMEOUT_SECONDS

SECRET_KEY = "chaos"
USE_TZ = True
DEBUG = False
INSTALLED_APPS = ["django_tasklock"]
PROCESS = os.environ.get("CHAOS_PROCESS", "conductor")
# The players in one place share fewer connections than they have threads.
POOL = (
    {"class": "redis.BlockingConnectionPool", "max_connections": 2, "timeout": 20}
    if PROCESS.startswith("2.")
    else {"class": "redis.ConnectionPool", "max_connections": 32}
)
# Churn has no faults: a machine that stands still for a moment is none.
TIMEOUT_SECONDS = 20.0 if PROCESS.startswith("churn") else SOCKET_TIMEOUT_SECONDS
CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": os.environ.get("CHAOS_REDIS", "redis://127.0.0.1:1/0"),
        "KEY_PREFIX": "chaos",
        "OPTIONS": {
            "SOCKET_CONNECT_TIMEOUT": TIMEOUT_SECONDS,
            "SOCKET_TIMEOUT": TIMEOUT_SECONDS,
            "CONNECTION_POOL_CLASS": POOL.pop("class"),
            # So that the server's list of clients tells whose a connection is.
            "CONNECTION_POOL_KWARGS": {**POOL, "client_name": PROCESS},
        },
    }
}
TASKLOCK = {"default": {"CACHE": "default", "TTL": 2}}
LOGGING_CONFIG = None
