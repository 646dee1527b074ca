"""The pages about moving here: what a reader is to write runs, beside the old code's keys.

Their ``python`` blocks run. Blocks of the language ``py`` are another library's code, for
readers to compare with; they are not run.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import django_redis.client
import pytest
import redis
import redis.lock

from django_tasklock import InvalidLockConfig, lock, locks
from django_tasklock.celery import LockedTask
from django_tasklock.celery.options import OPTIONS
from tests.conftest import UseRedis
from tests.mailroom import mailroom
from tests.page_site import APPLY, Around, Site, module
from tests.pages import ROOT, blocks, code, named
from tests.servers import RedisServer

MOVING = ROOT / "docs/moving"
PAGES = sorted(MOVING.glob("*.md"))

# ------------------------------------------------------------------------------ code that runs

QUEUE = """
import json, os, io, redis
from django.core.management import call_command
broker = redis.Redis.from_url(os.environ["EXAMPLE_REDIS_URL"])
def waiting():
    return broker.llen("example:celery:celery")
def reserved():
    out = io.StringIO()
    call_command("locks", "list", "--queued", "--format", "json", stdout=out)
    return {job["name"]: job for job in json.loads(out.getvalue())}
"""

BUILD = """
built = []
def build(*args):
    built.append(args)
    return list(args)
"""

FROM_CACHE_ADD = [
    Around("# before", "built = []\ndef build(shop):\n    built.append(shop)\n    return shop"),
    Around("# settings.py", "", APPLY),
    Around(
        "# after",
        "",
        """
from django_tasklock import ListingNotSupported, locks
assert (rebuild(1), rebuild_moved(1), built) == (1, 1, [1, 1])
assert cache.add("rebuild-2", "locked", 60)
assert rebuild_moved(2) is None
assert locks.get("rebuild-2").token is None and locks.list() == []
lease = locks.acquire("rebuild-3")
assert rebuild(3) is None
assert cache.get("rebuild-3")["token"] == lease.token
cache.delete("rebuild-3")
assert lease.extend() is False and not lease.held
assert built == [1, 1]
try:
    list(locks.store.scan())
    raise AssertionError("keys without a prefix were looked for")
except ListingNotSupported:
    pass
""",
    ),
    Around(
        "# after: videos/tasks.py",
        """
from example_project.videos.models import Video
seen = []
def transcode(video):
    seen.append((video.status, cache.add(f"video-{video.pk}", "locked", 60)))
""",
        """
video = Video.objects.create(title="a clip", file="clip.mp4")
assert process_video(video.pk) is None
video.refresh_from_db()
assert (video.status, seen) == ("ready", [("processing", False)])
assert process_video(video.pk)["reason"] == "invalid_state"
""",
    ),
]

FROM_CELERY_ONCE = [
    Around(
        "# after: shops/tasks.py",
        QUEUE + BUILD,
        """
from django_tasklock import locks
from django_tasklock.exceptions import AlreadyQueued
first = build_report.delay(7)
try:
    build_report.delay(7, notify=True)
    raise AssertionError("two copies of one job wait")
except AlreadyQueued as error:
    assert (error.name, error.task_id) == ("pages.build_report:7", first.id)
assert build_report.apply_async([7], on_duplicate="return").id == first.id
assert build_report.apply_async([8], unique_for=60).id != first.id
assert waiting() == 2
jobs = reserved()
assert 6 * 3600 - 60 < jobs["pages.build_report:7"]["ttl"] <= 6 * 3600
assert jobs["pages.build_report:8"]["ttl"] <= 60
# A copy that came another way does not run beside the first one.
lease = locks.acquire("pages.build_report:7")
assert build_report(7)["reason"] == "already_processing"
assert build_report.run(7) == [7, False]
assert lease.release() and build_report(7, notify=True) == [7, True]
""",
    ),
    Around(
        "# after: shops/views.py",
        module("shops.tasks", "build_report"),
        "assert start(7) == first.id and start(9) != first.id and waiting() == 3",
    ),
]

FROM_CELERY_SINGLETON = [
    Around(
        "# after: shops/tasks.py",
        QUEUE + BUILD,
        """
from celery import group
first = build_report.delay(7)
assert build_report.delay(7, notify=True).id == first.id
assert build_report.delay(shop_id=7).id == first.id
assert waiting() == 1
assert 6 * 3600 - 60 < reserved()["pages.build_report:7"]["ttl"] <= 6 * 3600
# What others depend on is sent.
group(build_report.s(7), build_report.s(7)).delay()
assert waiting() == 3
# The messages are gone, and what they had reserved is given up by hand.
broker.delete("example:celery:celery")
assert build_report.delay(7).id == first.id
call_command("locks", "clear", "--queued", "--all", "--noinput", verbosity=0)
assert build_report.delay(7).id != first.id and waiting() == 1
assert build_report(7) == [7, False]
""",
    ),
    Around(
        "# after: shops/once.py",
        "",
        """
from django_tasklock.exceptions import AlreadyQueued
first = clean_up.delay(7)
try:
    clean_up.delay(7)
    raise AssertionError("two copies of one job wait")
except AlreadyQueued as error:
    assert error.task_id == first.id
assert clean_up(8) == "clean: 8"
""",
    ),
]

HELD = """
from django_tasklock import locks
built = []
def build_report():
    built.append(locks.is_locked(NAME))
"""

FROM_PYTHON_REDIS_LOCK = [
    Around(
        "# after",
        "NAME = 'report:today'" + HELD,
        "assert built == [True] and not locks.is_locked(NAME)",
    ),
    Around("# after", "", "assert built == [True] * 3 and not locks.is_locked(NAME)"),
    Around(
        "# after: instead of cache.locked_get_or_set",
        """
made = []
def make_prices(shop_id):
    made.append(locks.is_locked(f"make:prices:{shop_id}"))
    return {"coffee": shop_id}
""",
        """
assert prices(7) == prices(7) == {"coffee": 7} and made == [True]
""",
    ),
    Around(
        "# settings.py",
        "",
        APPLY
        + """
import redis
client = redis.Redis.from_url(CACHES["plain"]["LOCATION"])
# As that library does it: SET lock:NAME, and a token.
assert client.set("lock:report:today", "their token", nx=True, ex=60)
assert locks.acquire("report:today") is None
assert locks.get("report:today").token is None
client.delete("lock:report:today")
with lock("report:today"):
    assert not client.set("lock:report:today", "their token", nx=True, ex=60)
assert client.set("lock:report:today", "their token", nx=True, ex=60)
""",
    ),
]

FROM_DJANGO_REDIS = [
    Around(
        "# after",
        "NAME = 'report-today'" + HELD,
        "assert built == [True] and not locks.is_locked(NAME)",
    ),
    Around("# after", "", "assert built == [True] * 3 and not locks.is_locked(NAME)"),
    Around(
        "# settings.py",
        "",
        APPLY
        + """
from django.core.cache import cache
theirs = cache.lock("report-today", timeout=60)
assert theirs.acquire(blocking=False)
assert locks.acquire("report-today") is None
assert locks.get("report-today").token is None and locks.list() == []
theirs.release()
with lock("report-today") as lease:
    assert not theirs.acquire(blocking=False)
    before = lease.remaining
    assert lease.extend(lease.remaining + 30) and lease.remaining > before + 29
assert theirs.acquire(blocking=False)
""",
    ),
]

STEPS = {
    "from-cache-add.md": FROM_CACHE_ADD,
    "from-celery-once.md": FROM_CELERY_ONCE,
    "from-celery-singleton.md": FROM_CELERY_SINGLETON,
    "from-python-redis-lock.md": FROM_PYTHON_REDIS_LOCK,
    "from-django-redis-lock.md": FROM_DJANGO_REDIS,
}


@pytest.mark.parametrize("page", STEPS)
def test_the_code_after_the_move_runs(
    page: str, own_redis_server: RedisServer, tmp_path: Path
) -> None:
    Site(own_redis_server, tmp_path).run_page(MOVING / page, STEPS[page])


@pytest.mark.parametrize(
    "option", [{"unique_on": "a"}, {"lock_expiry": 60}, {"raise_on_duplicate": True}]
)
def test_an_option_of_celery_singleton_that_is_left_is_an_error(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidLockConfig, match="there is no option"):
        type("Left", (LockedTask,), option)


def test_what_is_left_of_celery_once_does_nothing(
    use_redis: UseRedis, redis_server: RedisServer
) -> None:
    use_redis()
    with mailroom(redis_server.url) as room:
        task = room.task(once={"keys": []})
        for _ in range(2):
            task.apply_async([1], once={"graceful": True})
        assert len(room.waiting()) == 2
        assert room.deliver(room.take()) == ("SUCCESS", "done:1")


def test_no_page_is_left_out() -> None:
    assert {*STEPS, "index.md"} == {page.name for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_code_that_does_not_run_is_the_other_librarys(page: Path) -> None:
    assert all(block.label.startswith("# before") for block in blocks(page, "py"))


# ------------------------------------------------------------------------------ option by option

THEIRS = {
    # celery-once 3.0.1: QueueOnce.once, ONCE["settings"].
    "from-celery-once.md": {
        "graceful", "keys", "timeout", "unlock_before_run", "default_timeout", "url", "blocking",
        "blocking_timeout", "backend", "AlreadyQueued", "countdown",
    },
    # celery-singleton 0.3.1: Singleton, Config.
    "from-celery-singleton.md": {
        "unique_on", "raise_on_duplicate", "lock_expiry", "singleton_backend_url",
        "singleton_backend_kwargs", "singleton_backend_class", "singleton_key_prefix",
        "singleton_raise_on_duplicate", "singleton_lock_expiry", "clear_locks", "release_lock",
        "unlock", "generate_lock", "on_duplicate", "on_success", "on_failure",
        "DuplicateTaskError",
    },
    # python-redis-lock 4.0.1: Lock, redis_lock.django_cache.RedisCache.
    "from-python-redis-lock.md": {
        "redis_client", "name", "expire", "id", "auto_renewal", "strict", "signal_expire",
        "blocking", "timeout", "acquire", "extend", "release", "reset", "reset_all", "locked",
        "get_owner_id", "AlreadyAcquired", "NotAcquired", "TimeoutNotUsable", "InvalidTimeout",
        "TimeoutTooLarge", "NotExpirable", "locked_get_or_set",
    },
    "from-django-redis-lock.md": {
        *list(inspect.signature(django_redis.client.DefaultClient.lock).parameters)[1:],
        *list(inspect.signature(redis.lock.Lock.acquire).parameters)[1:],
        *list(inspect.signature(redis.lock.Lock.extend).parameters)[1:],
        "raise_on_release_error", "acquire", "extend", "reacquire", "release", "locked", "owned",
        "LockError", "LockNotOwnedError",
    } - {"additional_time"},
}  # fmt: skip

OURS = {
    *OPTIONS,
    *inspect.signature(lock).parameters,
    *inspect.signature(locks.acquire).parameters,
    *inspect.signature(locks.clear).parameters,
    "base",
}


def rows(page: Path) -> list[list[str]]:
    """The rows of all tables of a page, without their headings."""
    lines = [line for line in page.read_text("utf-8").splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    heads = [at - 1 for at, row in enumerate(cells) if set(row[0]) == {"-"}]
    return [row for at, row in enumerate(cells) if at not in {*heads, *(h + 1 for h in heads)}]


@pytest.mark.parametrize("page", THEIRS)
def test_each_of_their_options_has_a_row(page: str) -> None:
    left = " ".join(" ".join(code(row[0])) for row in rows(MOVING / page))
    assert THEIRS[page] - set(re.findall(r"\w+", left)) == set()


@pytest.mark.parametrize("page", STEPS)
def test_what_is_named_instead_exists_here(page: str) -> None:
    cells = [row[1] for row in rows(MOVING / page)]
    assert all(cells), "a row says nothing of ours"
    named_here = {
        name for cell in cells for each in code(cell) for name in re.findall(r"\b(\w+)=", each)
    }
    assert named_here - OURS == set()


def test_pages_for_the_index() -> None:
    text = (MOVING / "index.md").read_text("utf-8")
    for page in STEPS:
        assert f"]({page})" in text
