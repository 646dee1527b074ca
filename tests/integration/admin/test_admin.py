"""The admin page of live locks, through Django's own test client and a real Redis."""

from __future__ import annotations

import html
import json
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import Permission, User
from django.core.cache import cache
from django.core.management import call_command
from django.http import HttpResponse
from django.test import Client
from django.test.utils import override_settings
from django.urls import reverse
from redis import Redis

from django_tasklock import Lease, LockInfo, locks
from django_tasklock._values.describe import duration
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.models import Lock
from django_tasklock.signals import lock_cleared
from django_tasklock.stores import stores
from django_tasklock.stores.redis.many_at_once import CLEAR_MANY
from tests.conftest import UseCaches, UseRedis
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.store_cases import redis_cache

pytestmark = pytest.mark.django_db

LIST = "/admin/django_tasklock/lock/"
CLEAR = f"{LIST}clear/"
UserWith = Callable[..., Client]


@pytest.fixture
def client_with() -> UserWith:
    """``client_with("view_lock")``: a client logged in as staff with just these permissions."""

    def make(*codenames: str, staff: bool = True, **options: Any) -> Client:
        user = User.objects.create_user(f"user-{secrets.token_hex(4)}", is_staff=staff)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        assert user.user_permissions.count() == len(codenames)
        client = Client(**options)
        client.force_login(user)
        return client

    return make


@pytest.fixture
def operator(client_with: UserWith) -> Client:
    return client_with("view_lock", "delete_lock")


@pytest.fixture
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


@pytest.fixture
def a_store_down(
    use_caches: UseCaches, redis_server: RedisServer, own_redis_server: RedisServer
) -> None:
    """The store "dead", whose server was killed, beside the default one."""
    use_caches(
        {"default": redis_cache(redis_server.url), "dead": redis_cache(own_redis_server.url)},
        {"dead": {"CACHE": "dead"}, "default": {}},
    )
    own_redis_server.kill()


def acquire(name: str, ttl: float = 600, **who: Any) -> Lease:
    lease = locks.try_acquire(name, ttl=ttl, **who)
    assert isinstance(lease, Lease)
    return lease


def scripts_run(server: RedisServer) -> int:
    with Redis.from_url(server.url) as client:
        stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{verb}", {}).get("calls", 0) for verb in ("evalsha", "eval"))


def page_of(response: Any) -> str:
    assert response.status_code == 200, response
    return str(response.content.decode())


def words_of(response: Any) -> str:
    """The page's text, without markup."""
    text = re.sub(r"<[^>]+>", " ", page_of(response))
    return re.sub(r"\s+", " ", html.unescape(text))


def boxes_of(response: Any) -> list[str]:
    """The values of the check boxes of a list page."""
    found = re.findall(r'name="_selected_action" value="([^"]*)"', page_of(response))
    return [html.unescape(value) for value in found]


def leases_of(response: Any) -> str:
    """The hidden field of a confirmation page."""
    (value,) = re.findall(r'name="leases" value="([^"]*)"', page_of(response))
    return html.unescape(value)


def tick(client: Client, boxes: list[str], url: str = LIST, **more: str) -> Any:
    data = {"action": "clear_selected", "index": "0", "_selected_action": boxes, **more}
    return client.post(url, data)


def change_url(lease: Lease | LockInfo) -> str:
    return reverse("admin:django_tasklock_lock_change", args=[f"{lease.store}_3A{lease.name}"])


def delete_url(lease: Lease | LockInfo) -> str:
    return change_url(lease).replace("/change/", "/delete/")


# ------------------------------------------------------------------------------ the list


def test_list_shows_who_holds_what(on_redis: None, operator: Client) -> None:
    # Given a lock held for a task
    lease = acquire("video:123", 90, task="videos.transcode", task_id="0a1b-2c3d")

    # When the operator opens the list
    response = operator.get(LIST)

    # I expect the name, who holds it, for how long, and since when
    words = words_of(response)
    for word in (
        "video:123", "videos.transcode", "0a1b-2c3d", "alive",
        f"{lease.owner.host}:{lease.owner.pid}",
    ):  # fmt: skip
        assert word in words
    ((ttl, text),) = re.findall(r'data-tasklock-ttl="([\d.]+)"[^>]*>([^<]+)<', page_of(response))
    assert 0 < float(ttl) <= 90
    assert text == duration(float(ttl))
    (age,) = re.findall(r'data-tasklock-age="(-?[\d.]+)"', page_of(response))
    assert -1 < float(age) < 90
    assert "1 lock" in words


def test_list_without_locks(on_redis: None, operator: Client) -> None:
    assert "0 locks" in words_of(operator.get(LIST))


def test_lock_that_never_expires_says_so(on_redis: None, operator: Client) -> None:
    cache.add("lock:forever", 1, timeout=None)
    assert "never expires" in words_of(operator.get(f"{LIST}default_3Aforever/change/"))


def test_site_without_time_zones(on_redis: None, operator: Client) -> None:
    lease = acquire("video:1")
    with override_settings(USE_TZ=False):
        assert "video:1" in words_of(operator.get(LIST))
        assert "UTC" in words_of(operator.get(change_url(lease)))


def test_holder_that_is_gone_is_called_gone(
    on_redis: None, operator: Client, process_env: Callable[[], dict[str, str]]
) -> None:
    # Given a lock whose process has ended without releasing it
    script = (
        "import django, os; django.setup(); from django_tasklock import locks; "
        "assert locks.acquire('orphan', ttl=60); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script], env=process_env(), check=True, timeout=180)

    # I expect the list to say that its holder is gone
    words = words_of(operator.get(LIST))
    assert "orphan" in words
    assert "gone" in words
    assert "alive" not in words


def test_what_others_wrote_is_escaped(on_redis: None, operator: Client) -> None:
    acquire("<b>name</b>", task="<script>alert(1)</script>\x1b[31m\u202e", task_id='"><img src=x>')
    for url in (LIST, f"{LIST}?q=name", f"{LIST}default_3A_3Cb_3Ename_3C_2Fb_3E/change/"):
        page = page_of(operator.get(url))
        assert "<b>name" not in page
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "\x1b" not in page
        assert "\u202e" not in page
        assert "\\x1b[31m\\u202e" in page


def test_pages_have_no_inline_script_or_style(on_redis: None, operator: Client) -> None:
    lease = acquire("video:1")
    cache.add("lock:foreign", 1)
    pages = [
        operator.get(LIST),
        operator.get(change_url(lease)),
        operator.get(delete_url(lease)),
        operator.get(f"{LIST}default_3Aforeign/change/"),
    ]
    for response in pages:
        page = page_of(response)
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", page)
        assert not re.search(r"<script(?![^>]*\ssrc=)[^>]*>", page)


# ------------------------------------------------------------------------------ paging, search


def test_pages_follow_each_other_soonest_to_expire_first(on_redis: None, operator: Client) -> None:
    for number in range(230):
        acquire(f"job:{number:03}", 1000 + number)
    seen = []
    for page in (1, 2, 3):
        response = operator.get(LIST, {"p": page})
        assert "230 locks" in words_of(response)
        seen.append([json.loads(box)[2] for box in boxes_of(response)])
    assert list(map(len, seen)) == [100, 100, 30]
    assert [*seen[0], *seen[1], *seen[2]] == [f"job:{number:03}" for number in range(230)]


def test_page_that_is_gone_leads_to_the_first(on_redis: None, operator: Client) -> None:
    acquire("video:1")
    response = operator.get(LIST, {"p": 7}, follow=True)
    assert "video:1" in words_of(response)


def test_page_costs_the_same_whatever_there_is(
    use_redis: UseRedis, own_redis_server: RedisServer, operator: Client
) -> None:
    # Given a Redis that nobody else uses
    use_redis(own_redis_server.url)
    acquire("first")
    operator.get(LIST)  # scripts are loaded

    def questions(url: str) -> int:
        before = scripts_run(own_redis_server)
        assert operator.get(url).status_code == 200
        return scripts_run(own_redis_server) - before

    # When there are ten locks, and then three thousand
    for number in range(9):
        acquire(f"few:{number}")
    few = questions(LIST)
    for number in range(2990):
        acquire(f"many:{number}")

    # I expect each page to ask no more than the only page did
    assert few <= 4
    assert questions(LIST) == few
    assert questions(f"{LIST}?p=17") == few


@pytest.mark.parametrize(
    "query", ["VIDEO:77", "transcode", "77-abc", "video transcode abc", "{host}", "{pid} 77"]
)
def test_search_finds_by_name_task_and_owner(on_redis: None, operator: Client, query: str) -> None:
    lease = acquire("video:77", task="videos.transcode", task_id="77-abc")
    query = query.format(host=lease.owner.host, pid=lease.owner.pid)
    if "{" not in query and query != lease.owner.host:
        acquire("report:2024", task="reports.build", task_id="zzz")
    words = words_of(operator.get(LIST, {"q": query}))
    assert "video:77" in words


def test_search_leaves_out_what_does_not_match(on_redis: None, operator: Client) -> None:
    acquire("video:77", task="videos.transcode")
    acquire("video:78", task="videos.publish")
    words = words_of(operator.get(LIST, {"q": "video: transcode"}))
    assert "video:77" in words
    assert "video:78" not in words
    assert "1 result" in words
    assert "2 total" in words


def test_search_for_nothing_that_exists(on_redis: None, operator: Client) -> None:
    acquire("video:77")
    for query in ("nothing", "a name with spaces", "x" * 300, "<b>\x1b"):
        response = operator.get(LIST, {"q": query})
        assert "0 results" in words_of(response)


def test_search_for_its_exact_name_finds_a_foreign_key(on_redis: None, operator: Client) -> None:
    # Given a key that code with a plain cache.add has set: no index knows it
    cache.add("lock:legacy", "locked", 300)
    assert "legacy" not in words_of(operator.get(LIST))

    words = words_of(operator.get(LIST, {"q": "legacy"}))

    assert "legacy" in words
    assert "other code" in words


def test_locks_of_two_stores(
    use_caches: UseCaches, redis_server: RedisServer, operator: Client
) -> None:
    use_caches(
        {"default": redis_cache(redis_server.url), "second": redis_cache(redis_server.url)},
        {"default": {}, "other/store": {"CACHE": "second"}},
    )
    acquire("same:name")
    other = locks.using("other/store").acquire("same:name", ttl=30)
    assert other is not None

    # Both are listed, with the store's name
    response = operator.get(LIST)
    assert words_of(response).count("same:name") >= 2
    assert "other/store" in words_of(response)

    # And the one that was ticked is cleared, not its namesake
    (box,) = [box for box in boxes_of(response) if "other" in box]
    operator.post(CLEAR, {"leases": leases_of(tick(operator, [box]))})
    assert not locks.using("other/store").is_locked("same:name")
    assert locks.is_locked("same:name")
    assert LogEntry.objects.get().object_id == "other%2Fstore:same:name"


# ------------------------------------------------------------------------------ one lock


def test_detail_shows_the_record(on_redis: None, operator: Client) -> None:
    lease = acquire("a/b_c:d%", task="videos.transcode", task_id="0a1b")
    response = operator.get(LIST)
    assert "a/b_c:d%" in words_of(response)
    (url,) = re.findall(r'href="(/admin/django_tasklock/lock/[^"]+/change/)"', page_of(response))

    words = words_of(operator.get(url))

    info = locks.get("a/b_c:d%")
    assert info is not None
    for word in (info.key, str(lease.fence), "videos.transcode", "0a1b", lease.owner.thread):
        assert str(word) in words


def test_detail_of_what_is_not_locked_leads_back(on_redis: None, operator: Client) -> None:
    for url in (f"{LIST}default_3Agone/change/", f"{LIST}default_3Agone/history/"):
        response = operator.get(url, follow=True)
        assert response.redirect_chain[-1][0] == LIST
        assert "“gone” is not locked" in words_of(response)


@pytest.mark.parametrize(
    "object_id", ["nonsense", "default_3A", "_3Ax", "default_3Aa b", "x" * 600]
)
def test_detail_of_what_cannot_be_a_lock_leads_back(
    on_redis: None, operator: Client, object_id: str
) -> None:
    response = operator.get(f"{LIST}{object_id}/change/", follow=True)
    assert response.redirect_chain[-1][0] == LIST
    assert "is not locked" in words_of(response)


def test_detail_in_an_unknown_store_leads_back(on_redis: None, operator: Client) -> None:
    response = operator.get(f"{LIST}nowhere_3Ax/change/", follow=True)
    assert "no lock store 'nowhere'" in words_of(response)


# ------------------------------------------------------------------------------ clearing


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


def test_confirmation_by_address_shows_the_lease_of_now(on_redis: None, operator: Client) -> None:
    lease = acquire("video:1")
    confirmation = operator.get(delete_url(lease))
    assert locks.is_locked("video:1")
    operator.post(CLEAR, {"leases": leases_of(confirmation)})
    assert not locks.is_locked("video:1")


def test_lease_that_changed_hands_since_the_list_was_drawn_is_left_alone(
    on_redis: None, operator: Client
) -> None:
    old = acquire("video:1")
    boxes = boxes_of(operator.get(LIST))
    old.release()
    new = acquire("video:1")

    response = operator.post(
        LIST, {"action": "clear_selected", "index": "0", "_selected_action": boxes}, follow=True
    )

    assert "“video:1” changed hands since the page was drawn, and was left alone." in words_of(
        response
    )
    assert new.extend()
    assert not LogEntry.objects.exists()


def test_lease_that_changed_hands_since_the_detail_was_drawn_is_left_alone(
    on_redis: None, operator: Client
) -> None:
    old = acquire("video:1")
    page = page_of(operator.get(change_url(old)))
    (seen,) = re.findall(r'name="lease" value="([^"]+)"', page)
    old.release()
    new = acquire("video:1")

    response = operator.post(delete_url(old), {"lease": html.unescape(seen)}, follow=True)

    assert "changed hands" in words_of(response)
    assert new.extend()


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


def test_foreign_key_is_cleared(on_redis: None, operator: Client) -> None:
    cache.add("lock:legacy", "locked", 300)
    url = f"{LIST}?q=legacy"
    confirmation = tick(operator, boxes_of(operator.get(url)), url)
    operator.post(CLEAR, {"leases": leases_of(confirmation)})
    assert cache.get("lock:legacy") is None


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


def test_longest_list_can_be_ticked_as_a_whole(on_redis: None, operator: Client) -> None:
    for number in range(500):
        acquire(f"job:{number}")
    boxes = boxes_of(operator.get(LIST, {"all": ""}))
    assert len(boxes) == 500
    assert "Clear 500 locks" in page_of(tick(operator, boxes, select_across="0"))


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


def test_unknown_store_in_a_forged_lease_is_said(on_redis: None, operator: Client) -> None:
    response = operator.post(CLEAR, {"leases": '[["nowhere","t","x"]]'}, follow=True)
    assert "no lock store 'nowhere'" in words_of(response)


def test_wrong_token_clears_nothing(on_redis: None, operator: Client) -> None:
    lease = acquire("video:1")
    for token in ("guess", "", None):
        operator.post(CLEAR, {"leases": json.dumps([["default", token, "video:1"]])})
        assert lease.extend()


# ------------------------------------------------------------------------------ permissions


def everything(client: Client, lease: Lease) -> dict[str, HttpResponse]:
    """Each way in."""
    box = json.dumps([lease.store, lease.token, lease.name])
    return {
        "list": client.get(LIST),
        "search": client.get(LIST, {"q": lease.name}),
        "detail": client.get(change_url(lease)),
        "history": client.get(change_url(lease).replace("/change/", "/history/")),
        "confirm": client.get(delete_url(lease)),
        "confirm by post": client.post(delete_url(lease), {"lease": box}),
        "action": tick(client, [box]),
        "stock action": client.post(
            LIST,
            {"action": "delete_selected", "index": "0", "_selected_action": [box], "post": "yes"},
        ),
        "add": client.get(f"{LIST}add/"),
        "save": client.post(change_url(lease), {"name": "x"}),
        "clear by get": client.get(CLEAR, {"leases": f"[{box}]"}),
        "clear": client.post(CLEAR, {"leases": f"[{box}]"}),
    }


def codes(responses: dict[str, HttpResponse]) -> dict[str, int]:
    return {way: response.status_code for way, response in responses.items()}


def test_nobody_gets_in_without_a_login(on_redis: None) -> None:
    lease = acquire("video:1")
    responses = everything(Client(), lease)
    assert set(codes(responses).values()) == {302}
    assert all("/login/" in response["Location"] for response in responses.values())
    assert lease.extend()


def test_permissions_are_nothing_without_being_staff(on_redis: None, client_with: UserWith) -> None:
    lease = acquire("video:1")
    responses = everything(client_with("view_lock", "delete_lock", staff=False), lease)
    assert set(codes(responses).values()) == {302}
    assert lease.extend()


def test_staff_without_permissions_gets_nothing(on_redis: None, client_with: UserWith) -> None:
    lease = acquire("video:1")
    client = client_with()
    assert set(codes(everything(client, lease)).values()) == {403}
    assert lease.extend()
    assert "Task locks" not in words_of(client.get("/admin/"))


def test_view_lock_sees_and_clears_nothing(on_redis: None, client_with: UserWith) -> None:
    lease = acquire("video:1")
    client = client_with("view_lock")

    responses = everything(client, lease)

    assert codes(responses) == {
        "list": 200, "search": 200, "detail": 200, "history": 200,
        "confirm": 403, "confirm by post": 403, "action": 200, "stock action": 200,
        "add": 403, "save": 403, "clear by get": 403, "clear": 403,
    }  # fmt: skip
    assert lease.extend()
    # Nor does any page offer it, or carry what it would take.
    for way in ("list", "search", "detail", "action", "stock action"):
        page = page_of(responses[way])
        assert lease.token not in page
        assert "formaction" not in page
        assert "clear_selected" not in page


def test_no_page_shows_a_token_where_the_site_has_an_action_for_all_models(
    on_redis: None, client_with: UserWith
) -> None:
    """Such an action gives check boxes to those who may only look."""

    @admin.action(description="Count")
    def counted(self: Any, request: Any, rows: Any) -> Any:
        return HttpResponse(str(len(rows.held)))

    admin.site.add_action(counted)
    try:
        lease = acquire("video:1")
        client = client_with("view_lock")
        page = client.get(LIST)
        boxes = boxes_of(page)
        assert len(boxes) == 1
        assert lease.token not in page_of(page)
        assert page_of(tick(client, boxes, action="counted")) == "1"
        # Nor is what the box says worth anything to whoever may not clear.
        assert client.post(CLEAR, {"leases": f"[{boxes[0]}]"}).status_code == 403
    finally:
        admin.site.disable_action("counted")
        del admin.site._global_actions["counted"]
    assert lease.release()


def test_delete_lock_alone_sees_and_clears_nothing(on_redis: None, client_with: UserWith) -> None:
    lease = acquire("video:1")
    responses = codes(everything(client_with("delete_lock"), lease))
    assert set(responses.values()) == {403}
    assert lease.extend()


def test_both_permissions_see_and_clear(on_redis: None, operator: Client) -> None:
    lease = acquire("video:1")
    responses = everything(operator, lease)
    assert codes(responses) == {
        "list": 200, "search": 200, "detail": 200, "history": 200,
        "confirm": 200, "confirm by post": 200, "action": 200, "stock action": 302,
        "add": 403, "save": 403, "clear by get": 405, "clear": 302,
    }  # fmt: skip
    assert not locks.is_locked("video:1")


def test_superuser_neither_adds_nor_changes(on_redis: None, admin_client: Client) -> None:
    lease = acquire("video:1")
    responses = codes(everything(admin_client, lease))
    assert (responses["add"], responses["save"]) == (403, 403)
    assert responses["list"] == 200


def test_clearing_needs_the_csrf_token(on_redis: None, client_with: UserWith) -> None:
    lease = acquire("video:1")
    client = client_with("view_lock", "delete_lock", enforce_csrf_checks=True)
    box = json.dumps([lease.store, lease.token, lease.name])
    assert tick(client, [box]).status_code == 403
    assert client.post(CLEAR, {"leases": f"[{box}]"}).status_code == 403
    assert client.post(delete_url(lease), {"lease": box}).status_code == 403
    assert lease.extend()


def test_only_the_two_permissions_exist() -> None:
    codenames = Permission.objects.filter(content_type__app_label="django_tasklock")
    assert set(codenames.values_list("codename", flat=True)) == {"view_lock", "delete_lock"}


# ------------------------------------------------------------------------------ outages


def test_store_that_is_down_is_a_message(
    use_redis: UseRedis, own_redis_server: RedisServer, operator: Client
) -> None:
    # Given a list that was drawn, and then a Redis that dies
    use_redis(own_redis_server.url)
    lease = acquire("video:1")
    boxes = boxes_of(operator.get(LIST))
    confirmation = tick(operator, boxes)
    own_redis_server.kill()

    # I expect a sentence on every page, and nothing worse
    for response in (
        operator.get(LIST),
        operator.get(LIST, {"q": "video"}),
        operator.get(change_url(lease), follow=True),
        operator.get(delete_url(lease), follow=True),
        operator.post(delete_url(lease), {"lease": boxes[0]}, follow=True),
        operator.post(
            LIST, {"action": "clear_selected", "index": "0", "_selected_action": boxes}, follow=True
        ),
        operator.post(CLEAR, {"leases": leases_of(confirmation)}, follow=True),
    ):
        words = words_of(response)
        assert "The store “default” is unavailable:" in words
        assert "was cleared" not in words
        assert "not locked" not in words
    assert not LogEntry.objects.exists()


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
@pytest.mark.parametrize("atomic", [False, True], ids=["", "ATOMIC_REQUESTS"])
def test_what_was_cleared_before_the_process_was_killed_is_logged(
    on_redis: None, process_env: Callable[[], dict[str, str]], atomic: bool
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
        f"connections.settings['default']['ATOMIC_REQUESTS'] = {atomic}\n"
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


def test_lock_that_was_left_alone_has_no_entry(on_redis: None, operator: Client) -> None:
    acquire("kept")
    changing = acquire("changing")
    confirmation = tick(operator, boxes_of(operator.get(LIST)))
    changing.release()
    acquire("changing")
    operator.post(CLEAR, {"leases": leases_of(confirmation)})
    (entry,) = LogEntry.objects.all()
    assert entry.object_repr == "kept"
    assert entry.change_message.startswith("Cleared. It was held by pid")


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


def test_one_store_down_does_not_hide_the_other(a_store_down: None, operator: Client) -> None:
    acquire("video:1")
    words = words_of(operator.get(LIST))
    assert "video:1" in words
    assert "The store “dead” is unavailable:" in words


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


def test_wrong_settings_are_a_message(use_caches: UseCaches, operator: Client) -> None:
    use_caches(
        {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
        {"default": {"BACKEND": "no.such.Store"}},
    )
    assert "'no.such.Store'" in words_of(operator.get(LIST))


@pytest.mark.parametrize("url", [LIST, f"{LIST}?q=x&store=default&o=1", f"{LIST}?state=endless"])
def test_malformed_setting_is_a_message_on_the_list(
    use_redis: UseRedis, operator: Client, url: str
) -> None:
    use_redis(tasklock={"TLL": 60})
    response = operator.get(url, follow=True)
    assert response.redirect_chain == []
    assert "has no setting TLL" in words_of(response)
    live = operator.get(url.replace(LIST, f"{LIST}live/")).json()
    assert "has no setting TLL" in live["problems"][0]


def test_malformed_setting_is_a_message_on_every_page(
    use_redis: UseRedis, operator: Client
) -> None:
    use_redis(tasklock={"TLL": 60})
    lock = f"{LIST}default_3Avideo_3A1"
    box = '["default","t","video:1"]'
    for response in (
        operator.get(f"{lock}/change/", follow=True),
        operator.get(f"{lock}/delete/", follow=True),
        operator.get(f"{lock}/history/", follow=True),
        operator.get(f"{LIST}health/"),
        operator.post(
            LIST, {"action": "clear_selected", "index": "0", "_selected_action": box}, follow=True
        ),
        operator.post(CLEAR, {"leases": f"[{box}]"}, follow=True),
    ):
        assert "has no setting TLL" in words_of(response)


# ------------------------------------------------------------------------------ the model


def test_commands_over_all_models_pass_by_the_lock(tmp_path: Any) -> None:
    for option in ([], ["--all"]):
        call_command("dumpdata", *option, output=str(tmp_path / "dump.json"))
    assert not Lock.objects.exists()
    assert Lock.objects.count() == 0


def test_no_migration_is_missing() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


def test_what_a_lock_does_not_have_is_a_dash_on_its_page(on_redis: None, operator: Client) -> None:
    acquire("video:1")
    words = words_of(operator.get(f"{LIST}default_3Avideo_3A1/change/"))
    assert "Guarded row: -" in words
    assert "None" not in words
