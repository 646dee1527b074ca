"""Every address of the admin's pages: who may ask by which method, and what hostile text does."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.core.management import CommandError, call_command
from django.test import Client

from django_tasklock import locks
from django_tasklock._engine import history
from django_tasklock._values.event import Kind
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.admin.seen import SeenLease, encode_many
from django_tasklock.models import Lock
from django_tasklock.operators.reservations import key_of
from django_tasklock.stores import stores
from tests.admin.test_admin import LIST, UserWith, client_with
from tests.admin.test_health_page import leave_behind, rows_of
from tests.app.models import Job
from tests.conftest import UseRedis
from tests.mailroom import Mailroom, mailroom
from tests.operators.test_doctor import guard
from tests.servers import RedisServer

__all__ = ["client_with"]
pytestmark = pytest.mark.django_db(transaction=True)

NAME = "video:1"
DETAIL = f"{LIST}default_3A{NAME}/"
METHODS = ("get", "put", "delete", "options", "post")
ALL = ("view_lock", "delete_lock", "view_job", "change_job")
EVIL = """'"><evil evil=evil onload=evil()></script><evil>{{7*7}}{% evil %}&#x3c;evil>"""
CONTROLS = "\x1b[2J\x07\x9b31m\u202e\u2028"


@dataclass
class Site:
    """A site with one of everything that a page may show or end."""

    room: Mailroom
    token: str
    job: Job
    rows: str
    """what the button "Send again" of the row sends"""

    def box(self) -> SeenLease:
        return SeenLease("default", self.token, NAME, None)

    def state(self) -> object:
        """What an operator may change. Not the time: nothing ends by itself in these tests."""
        info = locks.get(NAME)
        return (
            None if info is None else info.token,
            sorted(found.name for found in locks.list()),
            [reserved.key for reserved in stores["default"].reservations()],
            len(self.room.waiting()),
            Job.objects.get(pk=self.job.pk).status,
            LogEntry.objects.count(),
        )


@pytest.fixture
def site(use_redis: UseRedis, redis_server: RedisServer, client_with: UserWith) -> Iterator[Site]:
    use_redis()
    with mailroom(redis_server.url) as room:
        room.task(guard=guard())
        lease = locks.acquire(NAME, ttl=600)
        assert lease is not None
        leave_behind("gone:1")
        job = Job.objects.create(status="processing")
        stores["default"].reserve(key_of("videos.tasks", "video:9"), "reserved-id", 600)
        rows = rows_of(client_of("operator", client_with).get(PAGES["health"].url))
        yield Site(room, lease.token, job, rows)


@dataclass(frozen=True)
class Page:
    """An address; ``form`` is what a form there sends, where it may change something."""

    url: str
    form: Callable[[Site], dict[str, Any]] | None = None


PAGES = {
    "changelist": Page(
        LIST,
        lambda site: {
            "action": "clear_selected", "index": "0", "_selected_action": [site.box().encode()],
        },
    ),
    "live": Page(f"{LIST}live/"),
    "contention": Page(f"{LIST}contention/"),
    "queued": Page(f"{LIST}queued/"),
    "queued_clear": Page(
        f"{LIST}queued/clear/",
        lambda site: {
            "seen": json.dumps(["default", "videos.tasks", "video:9", "reserved-id"])
        },
    ),
    "health": Page(f"{LIST}health/"),
    "clear_gone": Page(f"{LIST}health/clear/", lambda site: {}),
    "requeue": Page(f"{LIST}health/requeue/", lambda site: {"rows": site.rows}),
    "hold": Page(f"{LIST}hold/", lambda site: {"name": "video:7", "ttl": "2h", "reason": "why"}),
    "clear": Page(f"{LIST}clear/", lambda site: {"leases": encode_many([site.box()])}),
    "add": Page(f"{LIST}add/", lambda site: {"name": "video:8"}),
    "history": Page(f"{DETAIL}history/"),
    "delete": Page(f"{DETAIL}delete/", lambda site: {"lease": site.box().encode()}),
    "change": Page(f"{DETAIL}change/", lambda site: {"name": "video:8"}),
    None: Page(DETAIL),
}  # fmt: skip
CHANGES = ("queued_clear", "hold", "clear", "requeue")
"""pages whose POST changes something. The others that have a form ask first."""
ROLES: dict[str, tuple[str, ...] | None] = {
    "nobody": None,
    "no staff": ALL,
    "staff": (),
    "may view": ("view_lock",),
    "may delete": ("delete_lock",),
    "may change rows": ("view_job", "change_job"),
    "may view, and change rows": ("view_lock", "view_job", "change_job"),
    "operator": ALL,
}


def client_of(role: str, client_with: UserWith, **options: Any) -> Client:
    codenames = ROLES[role]
    if codenames is None:
        return Client(**options)
    return client_with(
        *(ALL if role == "no staff" else codenames), staff=role != "no staff", **options
    )


def test_every_address_is_tried_here() -> None:
    prefix = "django_tasklock_lock_"
    names = {
        pattern.name and pattern.name.removeprefix(prefix)
        for pattern in admin.site._registry[Lock].get_urls()
    }
    assert names == set(PAGES)


@pytest.mark.parametrize("role", ROLES)
def test_each_method_of_each_page(site: Site, role: str, client_with: UserWith) -> None:
    client = client_of(role, client_with)
    may_end = role == "operator"
    before = site.state()
    for name, page in PAGES.items():
        for method in METHODS:
            form = page.form(site) if page.form and method == "post" else {}
            if method == "post" and may_end:
                assert site.state() == before, (role, name)
            response = getattr(client, method)(page.url, *([form] if form else []))
            where = (role, name, method, response.status_code)
            assert response.status_code in (200, 302, 400, 403, 404, 405), where
            if "view_lock" not in (ROLES[role] or ()) or role == "no staff":
                said = response.content.decode() + response.headers.get("Location", "")
                assert response.status_code != 200 or method == "options", where
                assert site.token not in said, where
                assert "reserved-id" not in said, where
        if may_end:
            before = site.state()
        assert site.state() == before, (role, name)


@pytest.mark.parametrize("name", CHANGES)
def test_what_an_operator_sends_changes_something(
    site: Site, name: str, client_with: UserWith
) -> None:
    """Or the other tests of this module would see nothing."""
    page, before = PAGES[name], site.state()
    assert page.form is not None
    client_of("operator", client_with).post(page.url, page.form(site))
    assert site.state() != before


@pytest.mark.parametrize("superuser", [False, True])
def test_without_the_csrf_token_nothing_changes(
    site: Site, superuser: bool, client_with: UserWith, admin_user: Any
) -> None:
    if superuser:
        client = Client(enforce_csrf_checks=True)
        client.force_login(admin_user)
    else:
        client = client_of("operator", client_with, enforce_csrf_checks=True)
    before = site.state()
    for name, page in PAGES.items():
        form = page.form(site) if page.form else {}
        assert client.post(page.url, form).status_code == 403, name
        for method in ("put", "patch", "delete"):
            assert getattr(client, method)(page.url).status_code in (403, 405), name
        # Nor does a form that is sent by GET.
        client.get(page.url, form)
    assert site.state() == before


class Elements(HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self.found.update(name for name, _ in attrs)


def elements_of(text: str) -> set[str]:
    parser = Elements()
    parser.feed(text)
    parser.close()
    return parser.found


LISTS = {LIST, *(f"{LIST}{name}/" for name in ("live", "contention", "queued", "health", "hold"))}
PARAMETERS = (
    "q", "o", "p", "e", "all", "state", "task", "host", "name", "kind", "store", "page", "sort",
    "back", "_changelist_filters",
)  # fmt: skip
"""of the pages' addresses, and of Django's own list"""


@pytest.fixture
def hostile(site: Site) -> str:
    """Text of an enemy in all that a page shows: names, owners, waiters, reservations, events."""
    name = EVIL.replace(" ", "")[:190]
    text = EVIL + CONTROLS
    store = stores["default"]
    owner = {**owner_record(EVIL, EVIL), "host": EVIL, "thread": EVIL}
    store.acquire(name, new_token(), 600, owner)
    # Controls are in no record that is ours: this is somebody else's lock.
    store.acquire("x:1", new_token(), 600, owner | {"host": text, "task": text, "thread": text})
    held = {**owner_record(), "held_by": EVIL, "reason": EVIL}
    store.acquire("held:1", new_token(), 600, held)
    store.acquire("gone:2", new_token(), 600, {**owner_record(EVIL), "start": 1})
    store.reserve(key_of(EVIL, name), text, 600)
    kinds: tuple[Kind, ...] = ("refused", "lost", "cleared", "adopted")
    for kind in kinds:
        holder = locks.get(name)
        history.note_event("default", kind, name, owner, holder=holder, by=EVIL, reason=EVIL)
        # These are no remarks, so these are no events.
        history.note_event("default", kind, name, owner, by=text, reason=text)
    Job.objects.create(status="processing")
    return name


def test_hostile_text_is_text_on_every_page(
    site: Site, hostile: str, client_with: UserWith
) -> None:
    client = client_of("operator", client_with)
    of_it = f"{LIST}{quote(f'default:{hostile}')}/"
    assert client.get(f"{of_it}change/").status_code == 200
    urls = [page.url for page in PAGES.values()]
    urls += [f"{of_it}{part}" for part in ("change/", "history/", "delete/")]
    queries: list[dict[str, str]] = [{}, dict.fromkeys(PARAMETERS, EVIL + CONTROLS)]
    alone: list[dict[str, str]] = [{key: EVIL + CONTROLS} for key in PARAMETERS]
    seen = 0
    for url in urls:
        # Those of one lock, and those that act, look at none of them alone.
        for query in queries + (alone if url in LISTS else []):
            response = client.get(url, query, follow=True)
            assert response.status_code in (200, 400, 403, 404, 405), (url, query)
            text = response.content.decode()
            if response.headers["Content-Type"].startswith("application/json"):
                text = " ".join(
                    cell for row in json.loads(text).get("rows", ()) for cell in row["cells"]
                )
            found = elements_of(text)
            seen += "evil" in text
            assert not {element for element in found if "evil" in element}, (url, query)
    assert seen > len(urls), "the pages do not show what was written"


def test_hostile_text_does_not_reach_a_terminal(site: Site, hostile: str) -> None:
    for arguments in (
        ("list",), ("list", "--sort=-age"), ("list", "--queued"), ("show", hostile),
        ("history",), ("history", hostile), ("history", "--top"), ("doctor",),
        ("show", "x:1"),
    ):  # fmt: skip
        said = printed(*arguments)
        raw = {letter for letter in said if not letter.isprintable()} - {"\n"}
        assert not raw, (arguments, raw)
        assert "evil" in said or arguments[-1] in ("doctor", "x:1"), arguments


def printed(*arguments: str) -> str:
    """On standard output, by a command that may find something wrong."""
    out = io.StringIO()
    with suppress(CommandError):
        call_command("locks", *arguments, stdout=out, stderr=io.StringIO())
    return out.getvalue()
