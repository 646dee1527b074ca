"""Django's settings of all processes of a soak: those of the stage, on other servers."""

from __future__ import annotations

import json
import os
from typing import Any

from tests.nightly.soak import TTL_SECONDS
from tests.stage.settings import *  # noqa: F403

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
