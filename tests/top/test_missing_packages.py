"""Sites without django-redis or without Celery: what needs it says so, and the rest works."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from django_tasklock import Lease, locks
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from tests.agent import Agent
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.steps import LONG
from tests.store_cases import own_prefix
from tests.waiting import PATIENCE

BEGIN = """
import sys

REFUSED = sys.argv[1].split(",")

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refusing())

import django
django.setup()
import io, json
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from django_tasklock import locks
from django_tasklock.stores import stores

def command(*arguments):
    out = io.StringIO()
    try:
        call_command("locks", *arguments, stdout=out, stderr=io.StringIO())
    except CommandError as error:
        return str(error)
    except SystemExit:  # The doctor has found something.
        pass
    return out.getvalue()

def page(path, **form):
    client = Client()
    client.force_login(User.objects.get_or_create(
        username="root", is_staff=True, is_superuser=True)[0])
    answer = client.post(path, form) if form else client.get(path)
    return f"{answer.status_code} {answer.content.decode()}"

LIST = "/admin/django_tasklock/lock/"
said = {}
lease = locks.acquire("video:1", ttl=60, wait=1, renew=True)
said["refused"] = locks.acquire("video:1") is None
said["extended"] = lease.extend(60)
said["list"] = command("list")
said["page"] = page(LIST)
said["released"] = lease.release()
said["store"] = type(stores["default"]).__name__
"""

END = """
said["imported"] = sorted({name.partition(".")[0] for name in sys.modules} & {*REFUSED})
print(json.dumps(said))
"""

SENTENCE = "Celery cannot be imported here, so what tasks work on is not known: No module named"
Without = Callable[[str, str], dict[str, Any]]


@pytest.fixture
def without(process_env: Callable[[], dict[str, str]]) -> Without:
    """``without("celery", program)``: what the program said in a process that cannot import it,
    and in which a lock has lived."""

    def run(packages: str, program: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-c", BEGIN + program + END, packages],
            env=process_env(),
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        said: dict[str, Any] = json.loads(done.stdout)
        assert [said[each] for each in ("refused", "extended", "released")] == [True] * 3
        assert "video:1" in said["list"]
        assert "video:1" in said["page"]
        assert said["imported"] == []
        return said

    return run


def test_djangos_own_redis_cache_without_django_redis(
    use_caches: UseCaches, redis_server: RedisServer, without: Without
) -> None:
    cache = {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": redis_server.url,
        "KEY_PREFIX": own_prefix(),
        # Or the doctor says, with a redis-py before version 8, that there is none.
        "OPTIONS": {"socket_timeout": 5.0},
    }
    use_caches({"default": cache}, {"default": {}})
    said = without("django_redis", 'said["doctor"] = command("doctor")\n')
    assert said["store"] == "RedisStore"
    assert said["doctor"] == "Nothing is wrong.\n"


def test_what_is_about_tasks_without_celery(use_redis: UseRedis, without: Without) -> None:
    """A task's lock, whose task runs in a worker that has Celery; and a guarded row: whether a
    worker is at it is not known. The page says so, and does not save over it."""
    use_redis()
    with Agent() as agent:
        dead = owner_record("videos.process", "id-2") | {"pid": agent.pid, "start": 1}
        agent.kill()
    stores["default"].acquire("video:9", new_token(), LONG, dead)
    lease = locks.try_acquire("video:2", ttl=LONG, task="videos.process", task_id="id-1")
    assert isinstance(lease, Lease)
    said = without(
        "celery,kombu,billiard",
        'said["doctor"] = command("doctor")\n'
        'said["json"] = command("doctor", "--format", "json")\n'
        'said["health"] = page(LIST + "health/")\n'
        'said["explain"] = command("explain", "videos.process", "[1]")\n'
        'said["show"] = command("show", "video:2")\n'
        'said["row"] = json.loads(command("show", "video:2", "--format", "json"))["row"]\n'
        'said["detail"] = page(LIST + "default_3Avideo_3A2/change/")\n'
        "from tests.app.models import Job\n"
        "job = Job.objects.create()\n"
        'path = f"/admin/app/job/{job.pk}/change/"\n'
        'said["get"] = page(path)\n'
        'said["post"] = page(path, status="done", done_count="1")\n'
        "job.refresh_from_db()\n"
        'said["status"] = job.status\n',
    )
    for shown in ("doctor", "health", "explain", "show", "get", "post"):
        assert SENTENCE in said[shown], shown
    for shown in ("doctor", "health"):
        assert "video:9" in said[shown]
    rows, _ = json.JSONDecoder().raw_decode(said["json"])
    assert {row["kind"]: row["serious"] for row in rows} == {"unknown": False, "owner gone": True}
    assert said["row"] is None
    assert said["detail"].startswith("200 ")
    assert said["status"] == "queued"
