"""The admin's pages under themes that replace its templates."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User

from tests import needs
from tests.conftest import UseRedis
from tests.integration.admin.test_admin import acquire

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize("theme", ["unfold", "jazzmin"])
def test_theme_shows_every_page(
    use_redis: UseRedis, process_env: Callable[[], dict[str, str]], theme: str
) -> None:
    needs.package(theme, f"django-{theme}")
    # Given a site with the theme, and a lock
    use_redis()
    User.objects.create_superuser("themed")
    acquire("video:1", task="videos.transcode", task_id="0a1b-2c3d")
    env = process_env() | {
        "DJANGO_SETTINGS_MODULE": "tests.themed_settings",
        "TASKLOCK_TEST_THEME": theme,
    }

    # When its pages are opened
    process = subprocess.run(
        [sys.executable, "-m", "tests.themed_pages"],
        env=env, text=True, capture_output=True, timeout=180,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    said = json.loads(process.stdout)

    # I expect each to be there, in the theme, with what it is to show
    assert {name: page["status"] for name, page in said.items()} == {
        "list": 200, "filtered": 200, "live": 200, "detail": 200, "clear": 200, "health": 200,
        "hold": 200, "cleared": 302,
    }  # fmt: skip
    for name in ("list", "filtered", "detail", "clear", "health", "hold"):
        assert f"/{theme}/" in said[name]["page"], name
    for name in ("list", "filtered"):
        page = said[name]["page"]
        for words in (
            "video:1", "0a1b-2c3d", "data-tasklock-ttl", "django_tasklock/locks.js",
            "tasklock-live",
        ):  # fmt: skip
            assert words in page, (name, words)
        assert page.count("videos.transcode") >= 2, "the task itself, and its filter"
    assert json.loads(said["live"]["page"])["count"] == 1
    assert "Clear this lock…" in said["detail"]["page"]
    assert "manage.py locks show -- video:1" in said["detail"]["page"]
    assert "Clear this lock?" in said["clear"]["page"]
    assert "Hold this lock" in said["hold"]["page"]
    assert said["cleared"]["page"] == "False"
