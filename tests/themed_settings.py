"""The tests' settings with the admin theme that TASKLOCK_TEST_THEME names; "" is Django's own."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as APPS

INSTALLED_APPS = [*os.environ["TASKLOCK_TEST_THEME"].split(), *APPS]
# Nothing is asked of other machines.
JAZZMIN_SETTINGS = {"use_google_fonts_cdn": False}
