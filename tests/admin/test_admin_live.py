"""The list that keeps itself up to date: its cells, its JSON and its filters."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from django.urls import reverse

from django_tasklock import locks
from tests.admin.test_admin import (
    LIST,
    UserWith,
    acquire,
    boxes_of,
    client_with,
    on_redis,
    operator,
    page_of,
    words_of,
)
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.steps import orphan, waiting
from tests.store_cases import redis_cache
from tests.waiting import until

__all__ = ["client_with", "on_redis", "operator"]
pytestmark = pytest.mark.django_db
LIVE = f"{LIST}live/"


def live(client: Client, **asked: Any) -> dict[str, Any]:
    response = client.get(LIVE, asked)
    assert response.status_code == 200
    assert response["Content-Type"] == "application/json"
    said: dict[str, Any] = response.json()
    return said


def names(response: Any) -> list[str]:
    """The names on a page of the list, in its order."""
    return [json.loads(box)[2] for box in boxes_of(response)]


def wait_in_queue(name: str, count: int) -> list[threading.Thread]:
    """That many threads that wait for a lock; they end when it is cleared."""

    def wait() -> None:
        lease = locks.acquire(name, ttl=60, wait=120)
        if lease is not None:
            lease.release()

    threads = [threading.Thread(target=wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    until(lambda: waiting(name) == count, f"{count} wait", 60)
    return threads


# ------------------------------------------------------------------------------ the cells


def test_list_says_who_renews_who_waits_and_draws_a_bar(on_redis: None, operator: Client) -> None:
    held = acquire("waited:for", 90)
    renewed = locks.acquire("kept", ttl=100, renew=True)
    assert renewed
    threads = wait_in_queue("waited:for", 1)
    try:
        page = page_of(operator.get(LIST))
    finally:
        held.release()
        for thread in threads:
            thread.join(60)
        renewed.release()
    first, second = re.findall(r"<tr><td class=.*?</tr>", page, re.DOTALL)
    assert re.search(r'class="field-waiters[^>]*><span[^>]*>1<', first)
    assert ">not renewed<" in first
    assert re.search(r'class="field-waiters[^>]*><span[^>]*>0<', second)
    assert ">renewed<" in second
    ((most, left),) = re.findall(r'<progress [^>]*max="([\d.]+)" value="([\d.]+)"', first)
    assert float(most) == 90
    assert 0 < float(left) <= 90


# ------------------------------------------------------------------------------ JSON


def test_live_says_what_the_list_shows(on_redis: None, operator: Client) -> None:
    acquire("video:1", task="videos.transcode")
    acquire("other")
    said = live(operator, q="transcode")
    (row,) = said["rows"]
    html = "".join(row["cells"])
    link = reverse("admin:django_tasklock_lock_change", args=["default_3Avideo_3A1"])
    assert "videos.transcode" in html
    # Its links keep the search, as the list's own do
    assert f'href="{link}?_changelist_filters=q%3Dtranscode"' in html
    assert said["count"] == 1
    assert "1 lock" in said["pagination"]
    assert said["problems"] == []
    assert "video:1" in words_of(operator.get(LIST, {"q": "transcode"}))


def test_live_id_is_the_leases_and_does_not_tell_its_token(
    on_redis: None, client_with: UserWith
) -> None:
    viewer = client_with("view_lock")
    first = acquire("video:1")
    response = viewer.get(LIVE)
    (row,) = response.json()["rows"]
    assert row["id"] == live(viewer)["rows"][0]["id"]
    assert first.token not in response.content.decode()
    assert first.token not in page_of(viewer.get(LIST))
    assert f'data-tasklock-row="{row["id"]}"' in page_of(viewer.get(LIST))
    first.release()
    acquire("video:1")
    assert live(viewer)["rows"][0]["id"] != row["id"]


def test_live_of_a_store_that_is_down(
    use_redis: UseRedis, own_redis_server: RedisServer, operator: Client
) -> None:
    use_redis(own_redis_server.url)
    acquire("video:1")
    own_redis_server.kill()
    (problem,) = live(operator)["problems"]
    assert "The store “default” is unavailable" in problem


def test_live_of_wrong_settings_and_of_a_page_that_is_gone(
    on_redis: None, use_caches: UseCaches, operator: Client
) -> None:
    assert live(operator, p="7", nonsense="1")["gone"] is True
    use_caches(
        {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
        {"default": {"BACKEND": "no.such.Store"}},
    )
    assert "no.such.Store" in live(operator)["problems"][0]


# ------------------------------------------------------------------------------ the sidebar


def test_filters_by_task_and_host(on_redis: None, operator: Client) -> None:
    lease = acquire("video:1", task="videos.transcode")
    acquire("video:2", task="videos.publish")
    host = lease.owner.host
    page = page_of(operator.get(LIST))
    for choice in ("?task=videos.publish", "?task=videos.transcode", f"?host={host}"):
        assert f'href="{choice}"' in page
    assert names(operator.get(LIST, {"task": "videos.publish"})) == ["video:2"]
    assert names(operator.get(LIST, {"task": "none"})) == []
    assert len(names(operator.get(LIST, {"host": host or ""}))) == 2
    assert names(operator.get(LIST, {"host": "elsewhere"})) == []
    assert names(operator.get(LIST, {"host": host or "", "task": "videos.publish", "q": "2"})) == [
        "video:2"
    ]


def test_filters_by_state(on_redis: None, operator: Client) -> None:
    acquire("long", 600)
    acquire("short", 40)
    orphan("orphan", ttl=60)
    cache.add("lock:forever", 1, timeout=None)
    assert names(operator.get(LIST, {"state": "gone"})) == ["orphan"]
    assert sorted(names(operator.get(LIST, {"state": "soon"}))) == ["orphan", "short"]
    endless = operator.get(LIST, {"state": "endless"})
    assert names(endless) == ["forever"]
    assert "tasklock-live" in page_of(operator.get(LIST))
    assert len(names(operator.get(LIST, {"state": "nonsense"}))) == 3


def test_filters_by_store(
    use_caches: UseCaches, redis_server: RedisServer, operator: Client
) -> None:
    use_caches(
        {"default": redis_cache(redis_server.url), "second": redis_cache(redis_server.url)},
        {"default": {}, "other": {"CACHE": "second"}},
    )
    acquire("here")
    locks.using("other").acquire("there", ttl=30)
    assert 'href="?store=other"' in page_of(operator.get(LIST))
    assert names(operator.get(LIST, {"store": "other"})) == ["there"]
    assert names(operator.get(LIST, {"store": "nowhere"})) == []
    assert len(names(operator.get(LIST))) == 2


def test_filter_of_one_store_is_not_offered(on_redis: None, operator: Client) -> None:
    acquire("here")
    assert "?store=" not in page_of(operator.get(LIST))


def test_unknown_parameter_leads_to_the_list(on_redis: None, operator: Client) -> None:
    response = operator.get(LIST, {"nonsense": "1"})
    assert response.status_code == 302
    assert response["Location"] == f"{LIST}?e=1"
