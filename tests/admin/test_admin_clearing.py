"""Clearing locks from the admin: what was seen, after a question, with an entry for each."""

from __future__ import annotations

import html
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import DELETION, LogEntry
from django.core.cache import cache
from django.test import Client
from django.test.utils import override_settings

from django_tasklock import locks
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.admin import queued_page
from django_tasklock.models import Lock
from django_tasklock.operators.reservations import key_of
from django_tasklock.signals import lock_cleared
from django_tasklock.stores import stores
from django_tasklock.stores.redis.many_at_once import CLEAR_MANY
from django_tasklock.stores.redis.store import RedisStore
from tests.admin.test_admin import (
    CLEAR,
    LIST,
    acquire,
    boxes_of,
    change_url,
    client_with,
    leases_of,
    on_redis,
    operator,
    page_of,
    scripts_run,
    tick,
    words_of,
)
from tests.conftest import UseCaches, UseRedis
from tests.operators.test_reservations import reserve, store
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.store_cases import redis_cache

__all__ = ["client_with", "on_redis", "operator", "store"]
pytestmark = pytest.mark.django_db


def test_clear_asks_first_then_clears_and_logs(on_redis: None, operator: Client) -> None:
    # Given two locks, one of them ticked
    acquire("video:1", task="videos.transcode", task_id="id-1")
    acquire("video:2")
    (box,) = [box for box in boxes_of(operator.get(LIST)) if "video:1" in box]

    # When "clear" is chosen, I expect to be asked, and nothing to be cleared yet
    confirmation = tick(operator, [box])
    words = words_of(confirmation)
    assert "Clear this lock?" in words
    assert "video:1" in words
    assert "id-1" in words
    assert "video:2" not in words
    assert locks.is_locked("video:1")

    # When it is confirmed, I expect that one to be cleared, said, signalled and logged
    signals: list[dict[str, Any]] = []

    def receiver(**kwargs: Any) -> None:
        signals.append(kwargs)

    lock_cleared.connect(receiver)
    try:
        response = operator.post(CLEAR, {"leases": leases_of(confirmation)}, follow=True)
    finally:
        lock_cleared.disconnect(receiver)
    assert "“video:1” was cleared." in words_of(response)
    assert not locks.is_locked("video:1")
    assert locks.is_locked("video:2")
    (entry,) = LogEntry.objects.all()
    assert entry.action_flag == DELETION
    assert entry.object_repr == "video:1"
    assert entry.object_id == "default:video:1"
    assert entry.content_type is not None
    assert entry.content_type.model_class() is Lock
    assert "videos.transcode[id-1]" in entry.change_message
    (signal,) = signals
    assert signal["name"] == "video:1"
    assert signal["by"] == f"{entry.user.get_username()} in the admin"


def test_clear_from_the_detail_page(on_redis: None, operator: Client) -> None:
    lease = acquire("video:1")
    page = page_of(operator.get(change_url(lease)))
    (url,) = re.findall(r'formaction="([^"]+)"', page)
    (seen,) = re.findall(r'name="lease" value="([^"]+)"', page)

    confirmation = operator.post(url, {"lease": html.unescape(seen)})
    operator.post(CLEAR, {"leases": leases_of(confirmation)})

    assert not locks.is_locked("video:1")


def test_lease_that_changed_hands_since_it_was_asked_is_left_alone(
    on_redis: None, operator: Client
) -> None:
    # Given two leases on a confirmation page, one of which then changes hands
    changing, staying = acquire("changing"), acquire("staying")
    confirmation = tick(operator, boxes_of(operator.get(LIST)))
    changing.release()
    successor = acquire("changing")

    response = operator.post(CLEAR, {"leases": leases_of(confirmation)}, follow=True)

    words = words_of(response)
    assert "“staying” was cleared." in words
    assert "“changing” changed hands since the page was drawn, and was left alone." in words
    assert successor.extend()
    assert not staying.extend()
    assert [entry.object_repr for entry in LogEntry.objects.all()] == ["staying"]


def test_lease_that_ended_by_itself_is_said_to_have(on_redis: None, operator: Client) -> None:
    lease = acquire("video:1")
    boxes = boxes_of(operator.get(LIST))
    confirmation = tick(operator, boxes)
    lease.release()

    late = operator.post(CLEAR, {"leases": leases_of(confirmation)}, follow=True)
    assert "“video:1” was not locked any more." in words_of(late)

    later = operator.post(
        LIST, {"action": "clear_selected", "index": "0", "_selected_action": boxes}, follow=True
    )
    assert "“video:1” was not locked any more." in words_of(later)
    assert not LogEntry.objects.exists()


def test_lease_that_took_the_place_of_a_foreign_key_is_left_alone(
    on_redis: None, operator: Client
) -> None:
    cache.add("lock:legacy", "locked", 300)
    url = f"{LIST}?q=legacy"
    confirmation = tick(operator, boxes_of(operator.get(url)), url)
    cache.delete("lock:legacy")
    successor = acquire("legacy")

    response = operator.post(CLEAR, {"leases": leases_of(confirmation)}, follow=True)

    assert "changed hands" in words_of(response)
    assert successor.extend()


def test_select_all_clears_thousands(on_redis: None, operator: Client) -> None:
    # More than a form may have fields, and more than one page
    for number in range(1500):
        acquire(f"job:{number}")
    boxes = boxes_of(operator.get(LIST))

    confirmation = tick(operator, boxes[:1], select_across="1")
    assert "Clear 1500 locks" in page_of(confirmation)
    assert "And 1400 more." in words_of(confirmation)
    response = operator.post(CLEAR, {"leases": leases_of(confirmation)}, follow=True)

    assert "and 1495 more were cleared" in words_of(response)
    assert locks.count() == 0
    assert LogEntry.objects.count() == 1500


def test_select_all_of_a_search_clears_what_it_found(on_redis: None, operator: Client) -> None:
    acquire("video:1")
    acquire("report:1")
    url = f"{LIST}?q=video"
    confirmation = tick(operator, boxes_of(operator.get(url)), url, select_across="1")
    operator.post(CLEAR, {"leases": leases_of(confirmation)})
    assert [info.name for info in locks.list()] == ["report:1"]


def test_search_and_page_survive_the_way_back(on_redis: None, operator: Client) -> None:
    acquire("video:1")
    url = f"{LIST}?q=video"
    confirmation = tick(operator, boxes_of(operator.get(url)), url)
    (clear,) = re.findall(r'<form method="post" action="([^"]+clear/[^"]*)"', page_of(confirmation))
    response = operator.post(html.unescape(clear), {"leases": leases_of(confirmation)})
    assert response["Location"] == url


def test_more_than_a_form_can_carry_is_said(on_redis: None, operator: Client) -> None:
    for number in range(100):
        acquire(f"job:{number}")
    boxes = boxes_of(operator.get(LIST))
    with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=6000):
        response = tick(operator, boxes[:1], select_across="1")
        page = operator.get(response["Location"])
    assert "100 locks are too many for one form" in words_of(page)
    assert locks.count() == 100


@pytest.mark.parametrize(
    "leases",
    ["", "nonsense", "{}", "[1]", '[["default",1,"x"]]', '[["default","t",""]]',
     '[["default","t","a b"]]', '[["default","t"]]', "[" * 10000],
)  # fmt: skip
def test_forged_leases_are_refused(on_redis: None, operator: Client, leases: str) -> None:
    acquire("video:1")
    assert operator.post(CLEAR, {"leases": leases}).status_code == 400
    if leases:
        assert tick(operator, [leases]).status_code == 400
    assert locks.is_locked("video:1")


def test_wrong_token_clears_nothing(on_redis: None, operator: Client) -> None:
    lease = acquire("video:1")
    for token in ("guess", "", None):
        operator.post(CLEAR, {"leases": json.dumps([["default", token, "video:1"]])})
        assert lease.extend()


def test_what_was_cleared_before_the_store_went_down_is_logged(
    use_caches: UseCaches,
    redis_server: RedisServer,
    own_redis_server: RedisServer,
    operator: Client,
) -> None:
    use_caches(
        {"default": redis_cache(redis_server.url), "dying": redis_cache(own_redis_server.url)},
        {"default": {}, "dying": {"CACHE": "dying"}},
    )
    acquire("first")
    locks.using("dying").acquire("second", ttl=60)
    confirmation = tick(operator, boxes_of(operator.get(LIST)))
    own_redis_server.kill()

    response = operator.post(CLEAR, {"leases": leases_of(confirmation)}, follow=True)

    words = words_of(response)
    assert "“first” was cleared." in words
    assert "The store “dying” is unavailable:" in words
    assert [entry.object_repr for entry in LogEntry.objects.all()] == ["first"]


@pytest.mark.slow
def test_what_was_cleared_before_the_process_was_killed_is_logged(
    on_redis: None, process_env: Callable[[], dict[str, str]]
) -> None:
    """Each that was cleared has an entry; those of the part that was being cleared say less."""
    leases = [acquire(f"video:{n}") for n in range(20)]
    boxes = json.dumps([[lease.store, lease.token, lease.name] for lease in leases])
    program = (
        "import django, os, signal, sys\n"
        "django.setup()\n"
        "from django.contrib.auth.models import User\n"
        "from django.db import connections\n"
        "from django.test import Client\n"
        "from django_tasklock.signals import lock_cleared\n"
        "from django_tasklock.admin import clear_page\n"
        "clear_page.LOCKS_PER_CLEAR = 5\n"
        "connections.settings['default']['ATOMIC_REQUESTS'] = True\n"
        "cleared = []\n"
        "def kill(**_):\n"
        "    cleared.append(1)\n"
        "    if len(cleared) == 8:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "lock_cleared.connect(kill)\n"
        "client = Client()\n"
        "client.force_login(User.objects.create_superuser('root'))\n"
        f"client.post('{CLEAR}', {{'leases': sys.argv[1]}})\n"
    )
    done = subprocess.run([sys.executable, "-c", program, boxes], env=process_env(), check=False)
    assert done.returncode == -signal.SIGKILL
    assert locks.count() == 10
    cleared = [lease.name for lease in leases if not locks.is_locked(lease.name)]
    entries = LogEntry.objects.order_by("pk")
    assert [entry.object_repr for entry in entries] == cleared
    said = [entry.change_message.partition(" It was")[0] for entry in entries]
    assert said == ["Cleared."] * 5 + ["Asked to clear it; no answer yet."] * 5


def test_entries_of_a_clear_without_an_answer_say_so(
    use_redis: UseRedis, cut_proxy: CutProxy, operator: Client
) -> None:
    use_redis(cut_proxy.url)
    acquire("warm")
    confirmation = tick(operator, boxes_of(operator.get(LIST)))
    operator.post(CLEAR, {"leases": leases_of(confirmation)})
    acquire("video:1")
    confirmation = tick(operator, boxes_of(operator.get(LIST)))
    # When the lock is cleared, and the reply is lost
    cut_proxy.drop_reply(CLEAR_MANY.sha)
    response = operator.post(CLEAR, {"leases": leases_of(confirmation)}, follow=True)

    words = words_of(response)
    assert "The store “default” is unavailable:" in words
    assert "was cleared" not in words
    assert not locks.is_locked("video:1")
    entry = LogEntry.objects.order_by("pk")[1]
    assert entry.object_repr == "video:1"
    assert entry.change_message.startswith("Asked to clear it; no answer yet. It was held by pid")


def test_pages_of_hundreds_of_locks_ask_for_all_of_them_at_once(
    use_redis: UseRedis, own_redis_server: RedisServer, operator: Client
) -> None:
    # Given three hundred locks, one of which has a waiter, on a server that knows the scripts
    use_redis(own_redis_server.url)
    acquire("first")
    confirmation = tick(operator, boxes_of(operator.get(LIST)))
    operator.post(CLEAR, {"leases": leases_of(confirmation)})
    stores["default"].next_waiters(["first"])
    for number in range(300):
        acquire(f"video:{number}")
    waiter = stores["default"].waiter("video:7", new_token(), 60, owner_record())
    assert waiter is not None
    waiter.ask()
    boxes = boxes_of(operator.get(LIST, {"all": ""}))
    assert len(boxes) == 300

    # I expect the page that asks to cost two questions: who holds them, and who is next
    before = scripts_run(own_redis_server)
    confirmation = tick(operator, boxes, f"{LIST}?all=")
    counted = scripts_run(own_redis_server) - before
    assert "Clear 300 locks" in page_of(confirmation)
    assert "1 waits; next is pid" in words_of(confirmation)
    assert counted <= 5  # with the three of the list that the form was sent to

    # And the clear three more: who holds them now, the clear itself, and its events
    before = scripts_run(own_redis_server)
    operator.post(CLEAR, {"leases": leases_of(confirmation)})
    assert scripts_run(own_redis_server) == before + 3
    assert LogEntry.objects.count() == 301


def test_store_that_cannot_list_says_so_and_is_searched_by_name(
    on_locmem: None, operator: Client
) -> None:
    acquire("video:1")
    words = words_of(operator.get(LIST))
    assert "The store “default” cannot list its locks." in words
    assert "video:1" not in words

    url = f"{LIST}?q=video:1"
    response = operator.get(url)
    assert "video:1" in words_of(response)
    confirmation = tick(operator, boxes_of(response), url)
    operator.post(CLEAR, {"leases": leases_of(confirmation)})
    assert not locks.is_locked("video:1")


# ------------------------------------------------------------------------------ reservations


def test_reservations_of_the_queue_are_cleared_as_they_were_seen(
    store: RedisStore, operator: Client
) -> None:
    """Not one that came since, nor one that is reserved for another message by now."""
    queued = f"{LIST}queued/"
    for number in range(3):
        reserve(store, f"video:{number}")
    assert f'href="{queued}' in page_of(operator.get(LIST))
    page = operator.get(queued)
    assert re.search(r"video:1 \d+m\d\ds videos\.tasks\.process", words_of(page))
    (shown,) = re.findall(r'name="shown" value="([^"]*)"', page_of(page))
    reserve(store, "video:new")
    other, gone = (key_of("videos.tasks.process", f"video:{number}") for number in (0, 1))
    assert store.reserve(other, "the next", 60, over="id-of-video:0") is None
    assert store.unreserve(gone, "id-of-video:1")

    form = {"all": "1", "shown": html.unescape(shown)}
    words = words_of(operator.post(f"{queued}clear/", form, follow=True))

    assert "“video:2” was cleared." in words
    assert "“video:0” changed hands since the page was drawn" in words
    assert "“video:1” was not reserved any more." in words
    assert {found.key for found in store.reservations()} == {
        other, key_of("videos.tasks.process", "video:new"),
    }  # fmt: skip
    assert LogEntry.objects.get().change_message == (
        "Cleared in the queue. It was reserved for the task videos.tasks.process[id-of-video:2] "
        "in the store “default”."
    )
    # What was not looked at is not called nothing
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queued_page, "MAX_LOCKS_READ", 1)
        searched = words_of(operator.get(queued, {"q": "nothing"}))
    assert "Of the reservations of “default” only the first 1 were looked at." in searched
    assert "No reservations." not in searched
