"""The admin's page of what is reserved in the queue (``unique_while``)."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_tasklock import StoreUnavailable, locks
from django_tasklock.admin import queued_page
from django_tasklock.operators.reservations import key_of
from django_tasklock.stores import stores
from django_tasklock.stores.redis.store import RedisStore
from tests.conftest import UseRedis
from tests.integration.admin.test_admin import (
    LIST,
    UserWith,
    client_with,
    operator,
    page_of,
    words_of,
)
from tests.integration.operators.test_reservations import reserve, store

__all__ = ["client_with", "operator", "store"]
pytestmark = pytest.mark.django_db

QUEUED = f"{LIST}queued/"
CLEAR = f"{QUEUED}clear/"


def boxes_of(response: Any) -> list[str]:
    found = re.findall(r'name="seen" value="([^"]*)"', page_of(response))
    return [html.unescape(value) for value in found]


def shown_by(response: Any) -> str:
    (value,) = re.findall(r'name="shown" value="([^"]*)"', page_of(response))
    return html.unescape(value)


def test_the_page_shows_what_is_reserved(store: RedisStore, operator: Client) -> None:
    reserve(store, "video:1", ttl=630.9)
    reserve(store, "<b>bold</b>", task="other.task", ttl=60.9)
    assert f'href="{QUEUED}' in page_of(operator.get(LIST))
    words = words_of(operator.get(QUEUED))
    assert words.index("id-of-<b>bold</b>") < words.index("id-of-video:1")
    assert re.search(r"video:1 10m(30|2\d)s videos\.tasks\.process", words)
    for word in ("other.task", "celery purge"):
        assert word in words
    assert "<b>bold" not in page_of(operator.get(QUEUED))
    assert "video:1" not in words_of(operator.get(QUEUED, {"q": "other.task bold"}))
    assert "No reservations." in words_of(operator.get(QUEUED, {"q": "nothing"}))


def test_what_was_not_looked_at_is_not_called_nothing(
    store: RedisStore, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued_page, "MAX_LOCKS_READ", 2)
    not_all = "Of the reservations of “default” only the first 2 were looked at."
    for number in range(3):
        assert not_all not in words_of(operator.get(QUEUED))
        reserve(store, f"video:{number}", ttl=600 + number)
    words = words_of(operator.get(QUEUED))
    assert not_all in words
    assert "id-of-video:1" in words
    searched = words_of(operator.get(QUEUED, {"q": "video:2"}))
    assert not_all in searched
    assert "No reservations." not in searched


def test_ticked_ones_are_cleared_each_with_an_entry(store: RedisStore, operator: Client) -> None:
    for number in range(3):
        reserve(store, f"video:{number}", ttl=600 + number)
    locks.acquire("video:0", ttl=60)
    boxes = boxes_of(operator.get(QUEUED))
    response = operator.post(CLEAR, {"seen": boxes[:2]}, follow=True)
    assert "“video:0”, “video:1” were cleared." in words_of(response)
    assert [json.loads(box)[2] for box in boxes_of(response)] == ["video:2"]
    assert locks.is_locked("video:0")
    entries = LogEntry.objects.order_by("pk")
    assert [entry.object_repr for entry in entries] == ["video:0", "video:1"]
    assert entries[0].change_message == (
        "Cleared in the queue. It was reserved for the task videos.tasks.process[id-of-video:0] "
        "in the store “default”."
    )


def test_all_that_were_shown_are_cleared_as_they_were_seen(
    store: RedisStore, operator: Client
) -> None:
    """Not one that came since, nor one that is reserved for another message by now."""
    for number in range(3):
        reserve(store, f"video:{number}")
    shown = shown_by(operator.get(QUEUED))
    reserve(store, "video:new")
    other, gone = (key_of("videos.tasks.process", f"video:{number}") for number in (0, 1))
    assert store.reserve(other, "the next", 60, over="id-of-video:0") is None
    assert store.unreserve(gone, "id-of-video:1")
    response = operator.post(CLEAR, {"all": "1", "shown": shown}, follow=True)
    words = words_of(response)
    assert "“video:2” was cleared." in words
    assert "“video:0” changed hands since the page was drawn" in words
    assert "“video:1” was not reserved any more." in words
    assert {json.loads(box)[2] for box in boxes_of(response)} == {"video:0", "video:new"}
    assert LogEntry.objects.count() == 1


def test_who_may_see_and_clear(store: RedisStore, client_with: UserWith) -> None:
    reserve(store, "video:1")
    viewer, deleter = client_with("view_lock"), client_with("delete_lock")
    assert "id-of-video:1" in words_of(viewer.get(QUEUED))
    assert "Clear selected" not in words_of(viewer.get(QUEUED))
    assert deleter.get(QUEUED).status_code == 403
    box = json.dumps(["default", "videos.tasks.process", "video:1", "id-of-video:1"])
    for client in (viewer, deleter, client_with()):
        assert client.post(CLEAR, {"seen": box}).status_code == 403
    both = client_with("view_lock", "delete_lock", enforce_csrf_checks=True)
    assert both.get(CLEAR, {"seen": box}).status_code == 405
    assert both.post(CLEAR, {"seen": box}).status_code == 403
    assert len(store.reservations()) == 1


@pytest.mark.parametrize(
    "box",
    [
        "", "1", "{}", "[]", '["default","t","n"]', '["default","t","n",5]',
        '["default","t","a name","id"]', '["default","\\ud83d","n","id"]',
        '["default","t","n","\\ud83d"]',
    ],
)  # fmt: skip
def test_what_the_page_has_not_shown_is_a_bad_request(
    store: RedisStore, operator: Client, box: str
) -> None:
    assert operator.post(CLEAR, {"seen": box}).status_code == 400
    if box != "[]":
        assert operator.post(CLEAR, {"all": "1", "shown": box}).status_code == 400
    assert operator.post(CLEAR, {"all": "1", "shown": f"[{box}]"}).status_code in (302, 400)


def test_strange_ids_are_shown_and_cleared(store: RedisStore, operator: Client) -> None:
    key = key_of("task", "odd")
    reserve(store, "odd", task="task")
    store.client.ask("SET", [store.keyspace.note_key(key)], b"\xff\x1b[2J")
    response = operator.get(QUEUED)
    assert "\\udcff\\x1b[2J" in words_of(response)
    operator.post(CLEAR, {"seen": boxes_of(response)})
    assert store.get_note(key) is None
    assert LogEntry.objects.get().object_repr == "odd"


def test_a_store_that_cannot_list_says_so(on_locmem: None, operator: Client) -> None:
    words = words_of(operator.get(QUEUED))
    assert "The store “default” cannot list its reservations." in words
    assert "No reservations." not in words


def test_an_outage_is_a_message(use_redis: UseRedis, operator: Client) -> None:
    use_redis("redis://127.0.0.1:1/0")
    with pytest.raises(StoreUnavailable):
        stores["default"].reservations()
    assert "is unavailable" in words_of(operator.get(QUEUED))
    box = json.dumps(["default", "t", "n", "id"])
    assert "is unavailable" in words_of(operator.post(CLEAR, {"seen": box}, follow=True))
