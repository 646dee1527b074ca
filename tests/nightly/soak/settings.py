"""Django's settings of all processes of a soak: those of the stage, on other servers."""

from __future__ import annotations

import json
import os
from typing import Any

from tests.nightly.soak import TTL_SECONDS
from tests.stage import settings as of_the_stage

SECRET_KEY = "soak"
DEFAULT_AUTO_FIELD = of_the_stage.DEFAULT_AUTO_FIELD
USE_TZ = True
SILENCED_SYSTEM_CHECKS = of_the_stage.SILENCED_SYSTEM_CHECKS
INSTALLED_APPS = of_the_stage.INSTALLED_APPS
CACHES = of_the_stage.CACHES
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "tests.nightly.soak.site"
DATABASES: dict[str, dict[str, Any]] = {"default": json.loads(os.environ["SOAK_DATABASE"])}
TASKLOCK: dict[str, dict[str, Any]] = {"default": {"CACHE": "default", "TTL": TTL_SECONDS}}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"heard": {"class": "tests.nightly.soak.book.Heard"}},
    "root": {"handlers": ["heard"]},
}
