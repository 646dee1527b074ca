"""What a project adds to its settings for Sentry: the SDK, with the integrations it finds."""

from __future__ import annotations

import os

import sentry_sdk

DSN = "SURROUNDINGS_SENTRY"

sentry_sdk.init(dsn=os.environ[DSN], traces_sample_rate=1.0)
