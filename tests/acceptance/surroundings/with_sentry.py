"""For a worker: Sentry's SDK, with all its integrations."""

from __future__ import annotations

import os

import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration

sentry_sdk.init(
    dsn=os.environ["SENTRY_SINK"],
    integrations=[CeleryIntegration()],
    traces_sample_rate=1.0,
    shutdown_timeout=5,
)
