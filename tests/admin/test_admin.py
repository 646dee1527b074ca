"""The admin page of live locks, through Django's own test client and a real Redis."""

from __future__ import annotations

import html
import json
import re
import secrets
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
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
from django_tasklock.models import Lock
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.steps import orphan
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


def test_holder_that_is_gone_is_called_gone(on_redis: None, operator: Client) -> None:
    orphan("orphan")

    words = words_of(operator.get(LIST))
    assert "orphan" in words
    assert "gone" in words
    assert "alive" not in words


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


def test_one_store_down_does_not_hide_the_other(a_store_down: None, operator: Client) -> None:
    acquire("video:1")
    words = words_of(operator.get(LIST))
    assert "video:1" in words
    assert "The store “dead” is unavailable:" in words


def test_malformed_setting_is_a_message_on_every_page(
    use_redis: UseRedis, operator: Client
) -> None:
    use_redis(tasklock={"TLL": 60})
    lock = f"{LIST}default_3Avideo_3A1"
    box = '["default","t","video:1"]'
    for response in (
        operator.get(LIST),
        operator.get(f"{LIST}?q=x&store=default&o=1"),
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
