"""The code of the README and the docs runs, each page's in one process of the example site.

``tests/acceptance/test_tutorial.py`` runs the tutorial's, and ``test_moving_pages.py`` that of
``docs/moving``.
"""

from __future__ import annotations

import ast
import inspect
import shlex
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
from django.core.management import load_command_class

from django_tasklock import InvalidLockConfig, LockInfo, StoreUnavailable
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.conf import StoreSettings
from django_tasklock.stores.base import BaseStore, Note
from django_tasklock.stores.required import REQUIRED
from django_tasklock.testing import StoreContract
from tests.page_site import APPLY, Around, Site, module
from tests.pages import DOCS, PAGES, README, blocks, named
from tests.servers import RedisServer
from tests.waiting import until

CRON = DOCS / "howto/beat-and-cron.md"
STORES = DOCS / "howto/store-of-your-own.md"
TUTORIAL = DOCS / "tutorial.md"

NEWCOMERS = {"# mysite/settings.py, at the end", "# videos/models.py"}
"""blocks of a project that begins with nothing: ``tests/acceptance/test_tutorial.py`` runs them"""

README_STEPS = [
    Around(
        "# videos/tasks.py",
        """
done = []
def work(video_id):
    row = Video.objects.get(pk=video_id)
    done.append((row.status, row.lock_fence == process_video.lease.fence))
from example_project.videos.models import Video
""",
        """
video = Video.objects.create(pk=123, title="a clip", file="clip.mp4")
assert process_video(video.pk) is None
video.refresh_from_db()
assert (video.status, done) == ("ready", [("processing", True)])
assert process_video(video.pk)["reason"] == "invalid_state"
assert len(done) == 1
""",
    ),
    Around(
        "# anywhere else",
        """
order_id, charged = 7, []
def charge(number):
    from django_tasklock import locks
    charged.append((number, locks.is_locked("order:7")))
""",
        """
from django_tasklock import locks
assert charged == [(7, True)] and not lease.held and not locks.is_locked("order:7")
""",
    ),
]

API_STEPS = [
    Around(
        "# reports.py",
        """
halves = []
def first_half():
    halves.append(1)
def second_half():
    halves.append(2)
""",
        """
assert halves == [1, 2, 1, 2] and not locks.is_locked("report:today")
assert build_report("2026-11-20") == "the report of 2026-11-20"
with lock("report:2026-11-20"):
    assert build_report("2026-11-20") is None
    try:
        with lock("report:2026-11-20"):
            raise AssertionError("two hold one lock")
    except LockNotAcquired:
        pass
""",
    ),
    Around(
        "# shop/maintenance.py",
        "",
        """
held = keep_reports_away()
assert (held.held_by, held.reason) == ("alice", "database migration")
assert locks.acquire("report:today") is None
try:
    keep_reports_away()
    raise AssertionError("two hold one lock")
except RuntimeError as error:
    assert "alice" in str(error)
assert locks.clear("report:today")
""",
    ),
]

SETTINGS_STEPS = [
    Around(
        "# settings.py",
        "",
        APPLY
        + """
from django_tasklock import locks
assert locks.using("reports").acquire("today").held
assert not locks.is_locked("today")
from django_tasklock.stores import stores
assert stores["default"].takeover and not stores["reports"].takeover
""",
    ),
    Around(
        "# settings.py",
        "",
        """
from django_tasklock.conf import task_url
with override_settings(TASKLOCK_TASK_URL=TASKLOCK_TASK_URL):
    assert task_url("a/b") == "https://flower.example.com/task/a%2Fb"
""",
    ),
]

SLOTS_STEPS = [
    Around(
        "# shop/exports.py",
        "",
        """
from django_tasklock import locks
first = locks.acquire("export:7", slots=2)
assert first.slot == 1
assert export(7) == "export 2 of 2 for 7"
assert first.release()
assert not locks.count("export:7#")
""",
    ),
    Around(
        "# shop/tasks.py",
        "",
        """
from django_tasklock import locks
held = [locks.acquire("tenant:large", slots=5) for _ in range(4)]
assert invoice(1, "large") == "invoice 1 of large, permit 5"
assert invoice.lock_slots_of((1, "small"), {}) == 2
assert all(lease.release() for lease in held)
""",
    ),
]

SLOTS_STEPS.append(
    Around(
        "# shop/prices.py",
        "",
        """
from django_tasklock import locks
reader = locks.acquire("prices:7", slots=READERS)
assert read_prices(7) == "prices of 7"
names = [f"prices:7#{number}" for number in range(1, READERS + 1)]
assert locks.acquire_all(names) is None
assert reader.release()
assert write_prices(7) == "new prices of 7"
writer = locks.acquire_all(names)
assert locks.acquire("prices:7", slots=READERS) is None
assert all(lease.release() for lease in writer)
""",
    )
)

ASYNC_STEPS = [
    Around(
        "from django_tasklock import lock, locks",
        "",
        """
import asyncio
asyncio.run(refund(7))
assert asyncio.run(build_report("today")) is None
asyncio.run(tidy_up())
assert not locks.is_locked("tidy-up")
""",
    ),
]

QUORUM_STEPS = [
    Around(
        "# settings.py",
        "",
        APPLY
        + """
from django_tasklock.stores import stores
store = stores["default"]
assert (len(store.members), store.majority, store.supports_fence) == (5, 3, True)
""",
    ),
]

CLUSTER_STEPS = [
    Around(
        "# settings.py",
        "",
        APPLY
        + """
from django_tasklock.stores import stores
from django_tasklock.stores.cluster import RedisClusterStore
assert type(stores["default"]) is RedisClusterStore
""",
    ),
]

DATABASE_STEPS = [
    Around(
        "# settings.py",
        "",
        APPLY
        + """
from django.core.management import call_command
from django_tasklock import locks
call_command("migrate", verbosity=0)
lease = locks.acquire("today")
assert [info.fence for info in locks.list()] == [lease.fence]
assert lease.release()
""",
    ),
    Around(
        "# settings.py",
        """
import os
from pathlib import Path
from django.conf import settings
DATABASES, BASE_DIR = dict(settings.DATABASES), Path(os.environ["EXAMPLE_STATE"])
""",
        """
from django.core.management import call_command
from django.db import connections, transaction
from example_project.videos.models import Video
connections.settings |= connections.configure_settings(DATABASES)
"""
        + APPLY
        + """
call_command("migrate", database="locks", verbosity=0)
with transaction.atomic():
    Video.objects.create(title="a writer has the application's file")
    assert locks.acquire("today").release()
""",
    ),
]

OPTIONS_STEPS = [
    Around(
        "# what process_video.delay(video_id).get() returns",
        """
from celery import shared_task
from django_tasklock import locks
from django_tasklock.celery import LockedTask
@shared_task(base=LockedTask, lock_name="video:{video_id}")
def process_video(video_id):
    return video_id
""",
        """
shown = _
assert locks.try_acquire("video:123", task_id=shown["holder"]).held
assert process_video(123) == shown
""",
    ),
]

ADMIN_STEPS = [
    Around(
        "# shop/admin.py",
        "",
        """
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.urls import path
from django_tasklock import locks
lease = locks.acquire("report", ttl=60)
urls = type("urls", (), {"urlpatterns": [path("staff/", staff_site.urls)]})
client = Client()
client.force_login(User.objects.create_superuser("reader"))
with override_settings(ROOT_URLCONF=urls, ALLOWED_HOSTS=["*"]):
    for page in ("", "health/", "contention/", "queued/", "hold/"):
        shown = client.get(f"/staff/django_tasklock/lock/{page}")
        assert shown.status_code == 200, page
        assert b'"/admin/' not in shown.content, page
        assert page or b"report" in shown.content
assert lease.release()
""",
    ),
    Around(
        "# videos/admin.py",
        """
from django_tasklock import locks
from example_project.videos.models import Video
video = Video.objects.create(pk=123, title="a clip", file="clip.mp4")
assert locks.acquire("video:123", ttl=60).held
""",
        """
page = VideoAdmin(Video, admin.site)
form = page.get_form(None, fields=["title"])
refused = form({"title": "another"}, instance=video)
assert not refused.is_valid() and "Locked by" in str(refused.errors)
assert locks.clear("video:123")
assert form({"title": "another"}, instance=video).is_valid()
""",
    ),
]

UNIQUE_STEPS = [
    Around(
        "# accounts/tasks.py",
        "fetched = []\nfetch = fetched.append",
        """
assert sync_account.delay(8).id == sync_account.delay(8).id
sync_account(9)
assert fetched == [9]
""",
    ),
    Around(
        "# accounts/views.py",
        module("accounts.tasks", "sync_account"),
        """
queued = sync_account.delay(7)
try:
    sync_account.apply_async([7], unique_for=60, on_duplicate="raise")
    raise AssertionError("it was sent twice")
except AlreadyQueued as error:
    assert error.task_id == queued.id
""",
    ),
    Around(
        "# search/tasks.py",
        "written = []\ndef write_index(*call):\n    written.append(call)",
        """
first, last = index_page.delay(1, 1), index_page.delay(1, 2)
assert first.id != last.id
index_page(1, 3)
assert written == [(1, 3)]
""",
    ),
]

RETRIES_STEPS = [
    Around(
        "# accounts/tasks.py",
        "written = []\ndef write(*booking):\n    written.append(booking)",
        """
from django_tasklock import LockNotAcquired, lock
book(7, 100)
assert written == [(7, 100)]
with lock("account:7"):
    book(8, 200)
    try:
        book(7, 300)
        raise AssertionError("two have one account")
    except LockNotAcquired:
        pass
assert written == [(7, 100), (8, 200)]
""",
    ),
]

GUARDS_STEPS = [
    Around(
        "# videos/tasks.py",
        """
from example_project.videos.models import Video
encoded = []
def encode(video_id):
    encoded.append(Video.objects.get(pk=video_id).status)
    if len(encoded) > 1:
        raise KeyError("no such codec")
fresh = Video.objects.create(title="a clip", file="clip.mp4")
encoded_before = Video.objects.create(title="another", file="clip.mp4", hls_file="a.m3u8")
broken = Video.objects.create(title="broken", file="clip.mp4")
""",
        """
transcode(fresh.pk)
fresh.refresh_from_db()
assert (fresh.status, encoded) == ("ready", ["processing"]) and fresh.lock_fence
assert transcode(fresh.pk)["reason"] == "invalid_state"
assert transcode(encoded_before.pk)["reason"] == "invalid_state"
try:
    transcode(broken.pk)
    raise AssertionError("it succeeded")
except KeyError:
    broken.refresh_from_db()
assert broken.status == "failed"
from django.db import transaction
try:
    with transaction.atomic():
        transcode(broken.pk)
    raise AssertionError("a claim in a transaction")
except RuntimeError:
    pass
""",
    ),
    Around(
        "# videos/publish.py",
        """
import sys, types
from example_project.videos import models
sys.modules |= {"videos": types.ModuleType("videos"), "videos.models": models}
""",
        """
@shared_task(
    base=LockedTask,
    bind=True,
    lock_name="video:{video_id}",
    guard=StatusGuard(
        "videos.Video", pk="video_id", source="uploaded", to="processing", done="ready",
        fence_field="lock_fence",
    ),
)
def publish_twice(self, video_id):
    rows = Video.objects.filter(pk=video_id)
    assert publish(self, video_id, "first.m3u8")
    rows.update(lock_fence=self.lease.fence + 1)
    assert not publish(self, video_id, "late.m3u8")
    rows.update(lock_fence=self.lease.fence)
row = Video.objects.create(title="a clip", file="clip.mp4")
publish_twice(row.pk)
row.refresh_from_db()
assert (row.status, row.hls_file) == ("ready", "first.m3u8")
""",
    ),
    Around(
        "# videos/search.py",
        """
from example_project.videos.models import Video
written = []
def write_to_index(video_id):
    written.append(Video.objects.get(pk=video_id).status)
fresh = Video.objects.create(title="a clip", file="clip.mp4")
""",
        """
for times in (1, 2):
    index(fresh.pk)
    fresh.refresh_from_db()
    assert (fresh.status, written) == ("ready", ["indexing"] * times)
""",
    ),
]

OUTAGES_STEPS = [
    Around(
        "# mail/tasks.py",
        "written = []\nwrite_digest = written.append",
        """
import copy
from django.conf import settings
from django.test.utils import override_settings
NOWHERE = copy.deepcopy(settings.CACHES)
NOWHERE["default"]["LOCATION"] = "redis://127.0.0.1:1/0"
with override_settings(CACHES=NOWHERE):
    rebuild_digest(3)
assert written == [3]
""",
    ),
    Around(
        "# shop/payments.py",
        """
charged = []
charge = charged.append
def is_paid(order_id):
    return order_id in charged
""",
        """
assert settle(1) and charged == [1]
with override_settings(CACHES=NOWHERE):
    assert settle(1) and not settle(2)
assert charged == [1]
""",
    ),
]

VIEWS_STEPS = [
    Around(
        "# shop/pay.py",
        """
paid = []
def is_paid(order_id):
    return order_id in paid
def charge(order_id):
    from django_tasklock import locks
    assert locks.is_locked(f"pay:{order_id}")
    paid.append(order_id)
""",
        """
from django.test import RequestFactory
from django_tasklock import lock
post = RequestFactory().post("/")
assert pay(post, 7).content == b"Paid." and pay(post, order_id=7).content == b"Paid before."
with lock("pay:7", ttl=30):
    refused = pay(post, 7)
assert (refused.status_code, refused["Retry-After"]) == (409, "30")
""",
    ),
    Around(
        "# shop/class_views.py",
        "",
        """
from types import SimpleNamespace
post.user = SimpleNamespace(pk=3)
assert Checkout.as_view()(post).status_code == 200
with lock("cart:3"):
    assert Checkout.as_view()(post).status_code == 429
""",
    ),
    Around(
        "# shop/api.py",
        "charge = paid.append",
        """
from rest_framework.test import APIRequestFactory, force_authenticate
view = Orders.as_view({"post": "pay"})
assert view(APIRequestFactory().post("/"), pk=8).status_code == 403
post = APIRequestFactory().post("/")
force_authenticate(post, user=SimpleNamespace(is_authenticated=True))
assert view(post, pk=8).data == {"paid": 8} and paid[-1] == 8
with lock("pay:8", ttl=30):
    refused = view(post, pk=8)
    assert (refused.status_code, refused["Retry-After"]) == (409, "30")
    assert list(refused.render().data) == ["detail"]
""",
    ),
    Around(
        "# shop/views.py",
        """
charged = []
def charge(order_id):
    from django_tasklock import locks
    assert locks.is_locked(f"order:{order_id}")
    charged.append(order_id)
    if order_id == 9:
        locks.clear("order:9")
""",
        """
from django.test import RequestFactory
post = RequestFactory().post("/")
assert pay(post, 7).status_code == 200
with lock("order:8"):
    assert pay(post, 8).status_code == 409
assert pay(post, 9).status_code == 503
assert charged == [7, 9]
""",
    ),
    Around(
        "# shop/export.py",
        """
from celery import Celery
app = Celery("shop", broker="memory://")
app.set_current()
""",
        """
from django_tasklock import locks
assert start_export(post, 7).status_code == 202
assert start_export(post, 7).status_code == 409
assert locks.get("export:7").detached
app.conf.task_always_eager = True
assert start_export(post, 8).status_code == 202
assert not locks.is_locked("export:8")
""",
    ),
    Around(
        "# shop/status.py",
        "",
        """
import os
with lock("order:7"):
    assert f"pid {os.getpid()} " in who_charges(7)
assert who_charges(7) is None
""",
    ),
    Around(
        "# shop/reports.py",
        "",
        """
assert sales_report("monday") == "the sales of monday"
with lock("sales:monday"):
    assert sales_report("monday") is None
""",
    ),
    Around(
        "# shop/seats.py",
        "",
        """
assert [lease.name for lease in leases] == ["seat:2", "seat:1"]
leases.pop().release()
assert book_seats([1, 3])[0] < book_seats([3, 1])[1]
with lock("seat:3"):
    assert locks.acquire_all(["seat:1", "seat:3"]) is None
    assert not locks.is_locked("seat:1")
assert leases.pop().release()
assert transfer(1, 2, 50) == "50 from 1 to 2"
""",
    ),
    Around(
        "# shop/stock.py",
        "",
        """
assert book_set(7, [1, 2]) == ["1 of 7", "2 of 7"]
with lock("stock:7", reentrant=True):
    assert book_set(7, [1]) == ["1 of 7"]
assert not locks.is_locked("stock:7")
""",
    ),
]

METRICS_STEPS = [
    Around(
        "# settings.py",
        "",
        """
from django.conf import settings
from django.test.utils import override_settings
override_settings(
    INSTALLED_APPS=[*settings.INSTALLED_APPS, INSTALLED_APPS[-1]],
    TASKLOCK_METRICS=TASKLOCK_METRICS, ROOT_URLCONF="pages", ALLOWED_HOSTS=["*"],
).enable()
from django_tasklock import locks
assert locks.acquire("order:7").held
""",
    ),
    Around(
        "# urls.py",
        "",
        """
import sys, types
from django.test import Client
page = sys.modules["pages"] = types.ModuleType("pages")
page.urlpatterns = urlpatterns
authorized = {"Authorization": f"Bearer {TASKLOCK_METRICS['TOKEN']}"}
counted = Client().get("/metrics/", headers=authorized).content.decode()
assert 'tasklock_acquires_total{lock="order:{order_id}",outcome="acquired"' in counted, counted
assert "tasklock_locks{" in Client().get("/metrics/locks/", headers=authorized).content.decode()
assert Client().get("/metrics/").status_code == 403
""",
    ),
]

SENTRY_STEPS = [
    Around(
        "# reports/tasks.py",
        """
import contextlib, sys, types
check_ins, messages, built = [], [], []
sentry_sdk, crons = types.ModuleType("sentry_sdk"), types.ModuleType("sentry_sdk.crons")
@contextlib.contextmanager
def monitor(monitor_slug):
    check_ins.append(monitor_slug)
    yield
crons.monitor, sentry_sdk.capture_message = monitor, messages.append
sys.modules |= {"sentry_sdk": sentry_sdk, "sentry_sdk.crons": crons}
def build_report():
    built.append(1)
    return "report"
""",
        """
from django_tasklock import locks
assert daily_report() == "report" and check_ins == ["daily-report"]
assert daily_report()["reason"] == "cooling_down"
assert check_ins == ["daily-report"] and built == [1]
""",
    ),
    Around(
        "# shop/reporting.py",
        "",
        """
from django_tasklock.signals import task_not_run
told = {"task": "shop.pay", "template": "pay:{order_id}"}
task_not_run.send(None, outcome="requeued", reason="held", **told)
assert messages == []
task_not_run.send(None, outcome="requeued", reason="outage", **told)
assert messages == ["shop.pay: no answer of the lock store, for pay:{order_id}"]
""",
    ),
]

MONITORING_STEPS = [
    Around(
        "# settings.py",
        """
from django_tasklock import locks
""",
        """
import contextlib, io, logging.config
said = io.StringIO()
with contextlib.redirect_stderr(said):
    logging.config.dictConfig(LOGGING)
    first = locks.acquire("a")
    assert said.getvalue() == ""
    assert locks.acquire("a") is None
    first.release()
(line,) = said.getvalue().splitlines()
assert line.startswith("lock a in store default is held by pid "), line
""",
    ),
    Around(
        "# shop/metrics.py",
        "",
        """
from django_tasklock import lock, locks
with lock("a"):
    assert locks.acquire("a") is None
lost = locks.acquire("b")
assert locks.clear("b") and not lost.extend()
assert seen == {"refused": 1, "lost": 1}
""",
    ),
]

TESTING_STEPS = [
    Around("# settings of the tests"),
    Around(
        "# videos/tests.py",
        """
import sys, types, unittest
from celery import shared_task
from django_tasklock.celery import LockedTask
from django_tasklock.guards import StatusGuard
from example_project.videos import models
@shared_task(
    base=LockedTask,
    lock_name="video:{video_id}",
    guard=StatusGuard(
        "videos.Video", pk="video_id", source="uploaded", to="processing", done="ready"
    ),
)
def process_video(video_id):
    pass
tasks = types.ModuleType("videos.tasks")
tasks.process_video = process_video
sys.modules |= {"videos": types.ModuleType("videos"), "videos.models": models}
sys.modules["videos.tasks"] = tasks
""",
        """
tests = unittest.defaultTestLoader.loadTestsFromTestCase(ProcessVideoTests)
came_to = unittest.TextTestRunner().run(tests)
assert came_to.testsRun == 2 and came_to.wasSuccessful()
override_settings(TASKLOCK=IN_MEMORY).enable()
""",
    ),
    Around(
        "# videos/test_tasks.py",
        """
from django_tasklock import locks
def start_video(video_id):
    lease = locks.acquire(f"video:{video_id}")
    if lease is None:
        return "busy"
    lease.release()
    return "started"
tasks.start_video = start_video
""",
        """
from django_tasklock.testing import locks_in_memory
for test in (
    test_it_is_refused_while_another_host_works, test_it_leaves_no_lock,
    test_it_fails_while_redis_is_down,
):
    with locks_in_memory() as tasklock:
        test(tasklock)
""",
    ),
    Around(
        "# videos/test_start.py",
        "",
        """
tests = unittest.defaultTestLoader.loadTestsFromTestCase(StartVideoTests)
came_to = unittest.TextTestRunner().run(tests)
assert came_to.testsRun == 2 and came_to.wasSuccessful()
""",
    ),
    Around(
        "# conftest.py",
        "",
        """
lock("video:123").__enter__()
around = no_lock_is_left_behind.__wrapped__()
next(around)
assert next(around, None) is None and locks.list() == []
""",
    ),
    Around(
        "# videos/test_time.py",
        "",
        """
for test in (test_an_hour_later, test_the_work_took_too_long):
    with locks_in_memory() as tasklock:
        test(tasklock)
""",
    ),
]

CRON_STEPS = [
    Around(
        "# reports/daily.py",
        """
import sys, types
from example_project.videos import models
sys.modules["reports"], sys.modules["reports.models"] = types.ModuleType("reports"), models
sent, fails = [], []
def send(date):
    if fails:
        raise fails.pop()
    sent.append(date)
    return 3, 9
""",
        """
assert send_daily_report("2026-11-20").videos_ready == 3
assert send_daily_report("2026-11-20") is None
assert sent == ["2026-11-20"]
""",
    ),
    Around("# settings.py", "", APPLY),
    Around(
        "# reports/once.py",
        "",
        """
import gc, os
from django.core.management import call_command
from django_tasklock.operators.doctor import diagnose
assert once_a_day("2026-11-21") == (3, 9)
gc.collect()
assert once_a_day("2026-11-21").startswith("done")
fails.append(KeyError("no"))
try:
    once_a_day("2026-11-22")
    raise AssertionError("it failed")
except KeyError:
    pass
# Done by a process of this host that has ended, as one that cron has started.
child = os.fork()
if child == 0:
    os._exit(once_a_day("2026-11-22") != (3, 9))
assert os.waitpid(child, 0)[1] == 0
gone = [info.name for info in locks.using("once").list() if info.owner.alive() is False]
assert gone == ["daily:2026-11-22"]
assert once_a_day("2026-11-22").startswith("done")
said = {problem.what: problem.serious for problem in diagnose() if problem.kind == "owner gone"}
assert said == {"daily:2026-11-22": False}
call_command("locks", "clear", "--owner-gone", "--store", "once", "--noinput", "-v", "0")
call_command("locks", "clear", "--store", "once", "--", "daily:2026-11-21")
assert locks.using("once").list() == []
""",
    ),
    Around(
        "# settings.py",
        "",
        """
from celery import shared_task
from django_tasklock.celery import LockedTask
entry = CELERY_BEAT_SCHEDULE["sync"]
@shared_task(
    base=LockedTask, name=entry["task"], lock_name="account:{account}", unique_while="queued"
)
def sync_account(account):
    pass
ids = {sync_account.apply_async(entry["args"], **entry["options"]).id for _ in range(2)}
assert len(ids) == 1
""",
    ),
]

COOLING_STEPS = [
    Around(
        "# shop/pay.py",
        "charged = []\ncharge = charged.append",
        """
from django.test import RequestFactory
from django_tasklock import locks
post = RequestFactory().post("/")
assert pay(post, 7).content == b"Paid."
assert locks.get("pay:7").cooling
refused = pay(post, 7)
assert (refused.status_code, refused["Retry-After"]) == (409, "2") and charged == [7]
""",
    ),
    Around(
        "# shop/tasks.py",
        """
fetched = []
def fetch():
    fetched.append(1)
    if len(fetched) == 1:
        raise KeyError("no prices")
""",
        """
try:
    fetch_prices()
    raise AssertionError("it succeeded")
except KeyError:
    pass
assert 0 < locks.get("prices").ttl <= 60
assert fetch_prices()["reason"] == "cooling_down"
assert locks.clear("prices")
fetch_prices()
assert 3000 < locks.get("prices").ttl <= 3600
""",
    ),
]

LEADER_STEPS = [
    Around(
        "# feeds/follow.py",
        """
from django_tasklock import locks
imported = []
def import_next_item():
    assert locks.is_locked("importer")
    imported.append(1)
def is_finished():
    return len(imported) == 3
""",
        """
assert main() is None and len(imported) == 3 and not locks.is_locked("importer")
""",
    ),
]

CACHING_STEPS = [
    Around(
        "# shop/figures.py",
        """
from django.core.cache import cache
counted = []
def count_sales():
    counted.append(1)
    return 7
""",
        """
assert [sales_today(), sales_today()] == [7, 7] and len(counted) == 1
assert cache.get("sales-today") == 7 and cache.get("sales-today:fresh")
cache.delete("sales-today:fresh")
from django_tasklock import lock
with lock("cached:default:sales-today"):
    assert sales_today() == 7
assert len(counted) == 1
assert sales_today() == 7 and len(counted) == 2
""",
    ),
]

DJANGO_TASKS_STEPS = [
    Around(
        "# videos/tasks.py",
        """
import sys, types
import django
if django.VERSION < (6, 0):
    # Which has no tasks: the decorator below them is run all the same.
    sys.modules["django.tasks"] = tasks = types.ModuleType("django.tasks")
    tasks.task = lambda: lambda function: types.SimpleNamespace(call=function)
from example_project.videos.models import Video
encoded = []
encode = encoded.append
def parts_of(video_id):
    return [Video.objects.get(pk=video_id).status]
""",
        """
from django_tasklock import lock
video = Video.objects.create(title="a clip", file="clip.mp4")
with lock(f"video:{video.pk}"):
    assert process_video.call(video.pk)["reason"] == "already_processing"
process_video.call(video.pk)
video.refresh_from_db()
assert (video.status, encoded) == ("ready", ["processing"])
assert process_video.call(video.pk)["reason"] == "invalid_state"
""",
    ),
]

REDIS_STEPS = [
    Around(
        "# settings.py",
        "",
        """
from django.test.utils import override_settings
override_settings(DJANGO_REDIS_CONNECTION_FACTORY=DJANGO_REDIS_CONNECTION_FACTORY).enable()
"""
        + APPLY
        + """
from django_tasklock.stores import stores
assert stores["default"].replicas.needed == 1
""",
    ),
]

ZOOKEEPER_STEPS = [
    Around(
        "# settings.py",
        "",
        APPLY
        + """
from django_tasklock.stores import stores
options = stores["default"].options
assert (options.prefix, options.session_seconds) == ("/shop/locks", 10.0)
""",
    ),
]

STEPS = {
    "README.md": README_STEPS,
    "docs/howto/admin.md": ADMIN_STEPS,
    "docs/howto/async.md": ASYNC_STEPS,
    "docs/howto/beat-and-cron.md": CRON_STEPS,
    "docs/howto/caching.md": CACHING_STEPS,
    "docs/howto/cooling.md": COOLING_STEPS,
    "docs/howto/database.md": DATABASE_STEPS,
    "docs/howto/django-tasks.md": DJANGO_TASKS_STEPS,
    "docs/howto/guards.md": GUARDS_STEPS,
    "docs/howto/leader.md": LEADER_STEPS,
    "docs/howto/monitoring.md": MONITORING_STEPS,
    "docs/howto/outages.md": OUTAGES_STEPS,
    "docs/howto/quorum.md": QUORUM_STEPS,
    "docs/howto/redis-cluster.md": CLUSTER_STEPS,
    "docs/howto/retries.md": RETRIES_STEPS,
    "docs/howto/slots.md": SLOTS_STEPS,
    "docs/howto/testing.md": TESTING_STEPS,
    "docs/howto/unique-jobs.md": UNIQUE_STEPS,
    "docs/operations/metrics.md": METRICS_STEPS,
    "docs/operations/redis.md": REDIS_STEPS,
    "docs/howto/sentry-crons.md": SENTRY_STEPS,
    "docs/howto/views.md": VIEWS_STEPS,
    "docs/howto/zookeeper.md": ZOOKEEPER_STEPS,
    "docs/reference/api.md": API_STEPS,
    "docs/reference/settings.md": SETTINGS_STEPS,
    "docs/reference/task-options.md": OPTIONS_STEPS,
}


@pytest.mark.parametrize("page", STEPS)
def test_the_code_of_a_page_runs(page: str, own_redis_server: RedisServer, tmp_path: Path) -> None:
    site = Site(own_redis_server, tmp_path)
    site.run_page(README.parent / page, STEPS[page], leave_out=NEWCOMERS)


def test_all_python_is_run() -> None:
    """By the tests above, the class below, and the two modules that the first lines name."""
    elsewhere = {named(STORES), named(TUTORIAL)}
    with_code = {named(page) for page in PAGES if blocks(page, "python")}
    moving = {page for page in with_code if page.startswith("docs/moving/")}
    assert with_code - moving == STEPS.keys() | elsewhere


def test_the_commands_for_cron_are_understood() -> None:
    lines = [line for block in blocks(CRON, "text") for line in block.text.splitlines()]
    parser = load_command_class("django_tasklock", "locks").create_parser("manage.py", "locks")
    parsed = [
        vars(parser.parse_args(shlex.split(line.partition("manage.py locks ")[2])))
        for line in lines
    ]
    assert [options["argv"] for options in parsed] == [
        ["./daily.sh"],
        ["celery", "-A", "project", "beat"],
    ]
    daily, beat = parsed
    assert (daily["conflict_exit_code"], daily["verbosity"]) == (0, 0)
    assert daily["hold_at_least"] == 300
    assert (beat["name"], beat["ttl"]) == ("beat", 15)


@pytest.mark.parametrize("page", [page for page in PAGES if page != CRON], ids=named)
def test_commands_in_text_are_understood(page: Path) -> None:
    """Every ``manage.py locks`` of a ``text`` block is one that the command takes."""
    parser = load_command_class("django_tasklock", "locks").create_parser("manage.py", "locks")
    for block in blocks(page, "text"):
        for line in block.text.splitlines():
            _, command, arguments = line.partition("manage.py locks ")
            if command:
                words = shlex.split(arguments, comments=True)
                ends = [at for at, word in enumerate(words) if word in (">", "|", "||", "&&")]
                parser.parse_args(words[: ends[0] if ends else None])


def store_of_the_docs() -> dict[str, Any]:
    """The names of all modules that the page shows; one may import another one."""
    modules = {"shop": ModuleType("shop")}
    names: dict[str, Any] = {}
    with patch.dict(sys.modules, modules):
        for block in blocks(STORES, "python"):
            name = block.label.removeprefix("# ").removesuffix(".py").replace("/", ".")
            module = sys.modules[name] = ModuleType(name)
            tree = ast.parse("\n" * (block.line - 1) + block.text, block.page)
            exec(compile(tree, block.page, "exec"), vars(module))
            names |= vars(module)
    return names


class TestStoreOfTheDocs(StoreContract):
    """The store that the docs show keeps the contract."""

    def make_store(self) -> BaseStore:
        store: BaseStore = store_of_the_docs()["TestDictStore"]().make_store()
        return store

    def test_it_implements_all_that_a_store_must(self) -> None:
        shown = store_of_the_docs()["DictStore"]
        for name, method in inspect.getmembers(BaseStore, inspect.isfunction):
            if name in REQUIRED:
                assert name in vars(shown), f"{name} is not shown"
                theirs = list(inspect.signature(method).parameters)
                assert list(inspect.signature(vars(shown)[name]).parameters) == theirs

    def test_leases_that_are_over_are_removed(self) -> None:
        store: Any = self.make_store()
        for _ in range(100):
            store.acquire(new_token(), new_token(), 0.001, owner_record())
            until(lambda: all(ends < time.monotonic() for ends, *_ in store._leases.values()))
        assert len(store._leases) == 1

    def test_store_with_a_file_says_what_is_wrong(self, tmp_path: Path) -> None:
        shown = store_of_the_docs()["FileStore"]
        with pytest.raises(InvalidLockConfig, match="FILE"):
            shown(StoreSettings(alias="default"))
        nowhere = {"FILE": str(tmp_path / "none" / "locks"), "TAKEOVER": False}
        store = shown(StoreSettings(alias="default", options=nowhere))
        assert not store.takeover
        with pytest.raises(StoreUnavailable, match="unable to open"):
            store._execute("SELECT 1")

    def test_its_notes_and_reservations(self) -> None:
        store = self.make_store()
        token = new_token()
        store.acquire("a", token, 30, owner_record())
        holder = store.reserve("job", "1", 30, unless_held="a")
        assert isinstance(holder, LockInfo)
        assert holder.token == token
        assert store.release_with_note("a", token, None, Note("ended", "yes", 30))
        assert (store.get_note("ended"), store.get_note("other")) == ("yes", None)
        assert store.reserve("job", "1", 30, unless_held="a") is None
        assert store.reserve("job", "2", 30) == "1"
        assert store.reserve("job", "2", 30, over="1") is None
        assert (store.unreserve("job", "1"), store.unreserve("job", "2")) == (False, True)
