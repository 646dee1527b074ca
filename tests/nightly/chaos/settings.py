"""Django settings of the players and of the conductor, which names the server and who asks."""

from __future__ import annotations

import os

# The players in one place share fewer connections than they have threads.
FEW = os.environ.get("CHAOS_PROCESS", "").startswith("2.")

SECRET_KEY = "chaos"
USE_TZ = True
INSTALLED_APPS = ["django_tasklock"]
CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": os.environ.get("CHAOS_REDIS", "redis://127.0.0.1:1/0"),
        "KEY_PREFIX": "chaos",
        "OPTIONS": {
            "SOCKET_CONNECT_TIMEOUT": 1,
            "SOCKET_TIMEOUT": 1,
            "CONNECTION_POOL_CLASS": f"redis.{'Blocking' if FEW else ''}ConnectionPool",
            "CONNECTION_POOL_KWARGS": {"max_connections": 2, "timeout": 20} if FEW else {},
        },
    }
}
TASKLOCK = {"default": {"CACHE": "default", "TTL": 2}}
LOGGING_CONFIG = None
