"""What the readers of the pages have already, for the code of the pages to run."""

from __future__ import annotations

from typing import Any

READERS: dict[str, Any] = {
    **dict.fromkeys(
        ["build", "build_report", "charge", "count_sales", "encode", "fetch", "first_half",
         "import_next_item", "second_half", "transcode", "write", "write_index"], 7,
    ),
    "is_finished": True, "is_paid": False, "parts_of": [1, 2], "send": (3, 9),
}  # fmt: skip
"""functions of the reader's, with what they return"""

VALUES = ["BASE_DIR", "DATABASES", "TooManyRequests", "order_id"]
"""other names of the reader's"""

LEFT_OUT = [
    "# mysite/settings.py, at the end", "# videos/models.py", "# shop/admin.py, with django-unfold",
]  # fmt: skip
"""Files of a project that begins with nothing: ``tests/top/test_tutorial.py`` has one. And one of a
project with another theme: ``tests/nightly/surroundings/test_admin_themes.py``."""

BEFORE = {
    "docs/howto/django-tasks.md": """
import django
if django.VERSION < (6, 0):  # which has no tasks: the decorator below them is called all the same
    sys.modules["django.tasks"] = types.SimpleNamespace(task=lambda: lambda function: function)
""",
    "docs/howto/testing.md": """
from celery import shared_task
from django_tasklock import locks
from django_tasklock.celery import LockedTask
from django_tasklock.guards import StatusGuard
guard = StatusGuard("videos.Video", pk="pk", source="uploaded", to="processing", done="ready")
@shared_task(base=LockedTask, lock_name="video:{pk}", guard=guard)
def process_video(pk):
    pass
def start_video(pk):
    lease = locks.acquire(f"video:{pk}")
    return "started" if lease is not None and lease.release() else "busy"
made = types.SimpleNamespace(process_video=process_video, start_video=start_video)
sys.modules |= {"videos": types.ModuleType("videos"), "videos.tasks": made}
""",
    "docs/recipes.md": """
import example_project.uses.models
made = example_project.uses.models
sys.modules |= {"shop": types.ModuleType("shop"), "shop.models": made}
""",
}
"""What a page needs besides."""

AFTER = {
    "README.md": 'assert {row.status for row in Video.objects.all()} == {"ready"}',
    "docs/operate.md": """
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.urls import path
assert VideoAdmin(Video, admin.site).get_form(None, fields=["title"])
client = Client()
client.force_login(User.objects.create_superuser("reader"))
here = type("here", (), {"urlpatterns": [path("staff/", staff_site.urls)]})
with override_settings(ROOT_URLCONF=here, ALLOWED_HOSTS=["*"]):
    for page in ("", "events/", "health/", "add/"):
        shown = client.get("/staff/django_tasklock/lock/" + page)
        assert shown.status_code == 200 and b'"/admin/' not in shown.content, page
""",
    "docs/howto/retries.md": """
import contextlib
from django_tasklock import LockNotAcquired, StoreUnavailable
from django_tasklock.testing import held, outage
for trouble, error in ((held("account:7"), LockNotAcquired), (outage(), StoreUnavailable)):
    with trouble, contextlib.suppress(error):
        raise AssertionError(book(7, 100))
""",
    "docs/howto/views.md": """
from rest_framework.test import APIRequestFactory, force_authenticate
assert Checkout.as_view()(post).status_code == 200
request = APIRequestFactory().post("/")
force_authenticate(request, user=post.user)
assert Orders.as_view({"post": "pay"})(request, pk=8).data == {"paid": 8}
""",
    "docs/operations/metrics.md": """
from prometheus_client import generate_latest
assert b'tasklock_store_up{store="default"} 1.0' in generate_latest(REGISTRY)
""",
}
"""What a page is asked besides, with all names of its blocks."""
