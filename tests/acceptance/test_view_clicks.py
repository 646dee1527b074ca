"""``lock_view`` on a site that gunicorn serves with four processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache

from django_tasklock import locks
from tests.app.models import Job
from tests.conftest import UseRedis
from tests.processes import end_politely
from tests.servers import free_port
from tests.steps import Meanwhile, holder
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

CLICKS = 50
PROCESSES = 4
Reply = tuple[int, str, "str | None"]
"""status, body, Retry-After"""


@pytest.fixture
def gunicorn(
    request: pytest.FixtureRequest,
    use_redis: UseRedis,
    process_env: Callable[[], dict[str, str]],
    tmp_path: Path,
) -> Iterator[int]:
    """The port of ``tests/clicked_site.py`` on gunicorn; a parameter is the store's setting."""
    use_redis(tasklock=getattr(request, "param", None))
    port = free_port()
    environment = process_env() | {"GUNICORN_CMD_ARGS": ""}
    with (tmp_path / "gunicorn.log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "gunicorn", f"--bind=127.0.0.1:{port}",
                f"--workers={PROCESSES}", f"--threads={CLICKS}",
                "--env=TASKLOCK_TEST_URLCONF=tests.clicked_site",
                "--no-control-socket", "tests.clicked_site:application",
            ],
            env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            until(lambda: process.poll() is not None or serves(port), "gunicorn", 60)
            assert process.poll() is None, (tmp_path / "gunicorn.log").read_text()
            yield port
        finally:
            end_politely(process)


def serves(port: int) -> bool:
    try:
        return get(port, "/nothing-here/")[0] == 404
    except OSError:
        return False


def get(port: int, path: str) -> Reply:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode(), response.headers["Retry-After"]
    finally:
        connection.close()


def click(port: int, path: str) -> list[Reply]:
    """Many clicks at the same moment."""
    with ThreadPoolExecutor(CLICKS) as threads:
        return list(threads.map(lambda _: get(port, path), range(CLICKS)))


def test_fifty_clicks_charge_once(gunicorn: int) -> None:
    # Given a view that charges twice if it is called twice at a time
    careless = Job.objects.create()
    click(gunicorn, f"/pay-unlocked/{careless.pk}/")
    careless.refresh_from_db()
    assert careless.done_count > 1
    # When fifty clicks come to the same view under a lock
    order = Job.objects.create()
    replies = click(gunicorn, f"/pay/{order.pk}/")
    # I expect one charge, and the others to be refused and to say when to come again
    order.refresh_from_db()
    assert (order.status, order.done_count) == ("paid", 1)
    assert sum(body.startswith("charged") for _, body, _ in replies) == 1
    statuses = Counter(status for status, _, _ in replies)
    assert statuses.keys() <= {200, 409}
    assert statuses[409] > 0
    for status, _, seconds in replies:
        assert (seconds is not None) == (status == 409)
        assert seconds is None or 1 <= int(seconds) <= 30
    # I expect nothing to be left behind
    assert not locks.is_locked(f"pay:{order.pk}")


def test_clicks_that_wait_are_answered_in_turn(gunicorn: int) -> None:
    processes: set[str] = set()

    def several_took_part() -> bool:
        order = Job.objects.create()
        replies = click(gunicorn, f"/pay-in-turn/{order.pk}/")
        order.refresh_from_db()
        assert order.done_count == 1
        assert {status for status, _, _ in replies} == {200}
        processes.update(body.split()[-1] for _, body, _ in replies)
        return len(processes) > 1

    # On a busy machine one process may accept all clicks of a moment
    until(several_took_part)


def charging_process_is_killed(port: int, path: str) -> None:
    """Click, and kill the gunicorn worker that serves the click, before it has charged."""
    cache.set("hang", True, None)
    first: Meanwhile[Any] = Meanwhile(lambda: get(port, path))
    pid = until(lambda: cache.get("charging"), "a charge", 60)
    os.kill(pid, signal.SIGKILL)
    # I expect the client to lose its connection, as with any site
    with pytest.raises(OSError):
        first.result()
    cache.delete("hang")


def test_lock_of_a_killed_worker_is_taken_over_by_the_next_click(gunicorn: int) -> None:
    order = Job.objects.create()
    # Given a worker that is killed in the middle of a charge, with a lease of an hour
    charging_process_is_killed(gunicorn, f"/pay-for-long/{order.pk}/")
    assert (holder(f"pay:{order.pk}").ttl or 0) > 3000
    # When fifty clicks come after that
    replies = click(gunicorn, f"/pay-for-long/{order.pk}/")
    # I expect one of them to charge, at once
    assert sum(body.startswith("charged") for _, body, _ in replies) == 1
    order.refresh_from_db()
    assert (order.status, order.done_count) == ("paid", 1)
    assert not locks.is_locked(f"pay:{order.pk}")


@pytest.mark.parametrize("gunicorn", [{"OPTIONS": {"TAKEOVER": False}}], indirect=True)
def test_lock_of_a_worker_killed_elsewhere_is_free_at_the_end_of_its_lease(gunicorn: int) -> None:
    order = Job.objects.create()
    path = f"/pay-for-short/{order.pk}/"
    # Given a worker that is killed, and nobody who can see that it is dead
    charging_process_is_killed(gunicorn, path)
    ends = time.monotonic() + (holder(f"pay:{order.pk}").ttl or 0)
    # When somebody clicks again as often as he is told to come again
    refused: list[int] = []

    def charged() -> str:
        status, body, seconds = get(gunicorn, path)
        if status == 409:
            refused.append(int(seconds or 0))
        return body if status == 200 else ""

    said = until(charged, "the end of the lease", 60, every=0.2)
    # I expect that to be no sooner than the lease's end, and one charge
    assert time.monotonic() >= ends
    assert said.startswith("charged")
    assert all(1 <= seconds <= 6 for seconds in refused)
    order.refresh_from_db()
    assert order.done_count == 1
    assert get(gunicorn, path)[1].startswith("paid before")
