"""The tests' settings with another admin theme, named by TASKLOCK_TEST_THEME."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as APPS

INSTALLED_APPS = [os.environ["TASKLOCK_TEST_THEME"], *APPS]
