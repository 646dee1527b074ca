"""Sites with a theme of the admin, in processes of their own, and what is on their pages."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from uuid import UUID

from tests import needs

LIST = "/admin/django_tasklock/lock/"
STOCK = "stock"
THEMES = (STOCK, "unfold", "jazzmin")
APPS = {STOCK: "", "unfold": "unfold", "jazzmin": "jazzmin"}
NAME = "video:123456"
TASK = "shop.tasks.send_nightly_report"
HOST = "worker-eu-central-12"
PAGES = {
    "list": LIST,
    "detail": f"{LIST}default_3Avideo_3A123456/change/",
    "confirm": f"{LIST}default_3Avideo_3A123456/delete/",
    "gone": f"{LIST}default_3Avideo_3A99/change/",
    "health": f"{LIST}health/",
    "contention": f"{LIST}contention/",
    "hold": f"{LIST}hold/",
    "queued": f"{LIST}queued/",
}


def task_id(number: int) -> str:
    """Return a task id as Celery makes them."""
    return str(UUID(int=0x7D0A61F293F54D9CB1F45F2F1A3EC000 + 7919 * number))


@contextlib.contextmanager
def served(theme: str, env: Mapping[str, str]) -> Iterator[str]:
    """Serve the site under the theme in a process with this environment; yields its URL."""
    if theme != STOCK:
        needs.package(theme, f"django-{theme}")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.themed_site"],
        env={
            **env,
            "DJANGO_SETTINGS_MODULE": "tests.themed_settings",
            "TASKLOCK_TEST_THEME": APPS[theme],
        },
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        assert port, "the site's process has ended"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
