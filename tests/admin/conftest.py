"""Users with just some permissions, and what the tests read on a page."""

from __future__ import annotations

import html
import re
import secrets
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from django_tasklock import Lease, LockInfo, locks
from django_tasklock.models import Lock
from tests.celery_tasks.conftest import room
from tests.inside import asked, operators

__all__ = ["room"]
LIST = "/admin/django_tasklock/lock/"
EVENTS = f"{LIST}events/"
HEALTH = f"{LIST}health/"
SEND = f"{LIST}send/"
ADD = f"{LIST}add/"
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


def taken(name: str, ttl: float = 600, **who: Any) -> Lease:
    lease = asked(name, ttl=ttl, **who)
    assert isinstance(lease, Lease)
    return lease


def page_of(response: Any) -> str:
    assert response.status_code == 200, response
    return str(response.content.decode())


def words_of(response: Any) -> str:
    """The page's text, without markup."""
    text = re.sub(r"<[^>]+>", " ", page_of(response))
    return re.sub(r"\s+", " ", html.unescape(text))


def boxes_of(response: Any) -> list[str]:
    """The ids of the locks of a list, or of a page that asks."""
    found = re.findall(r'name="_selected_action" value="([^"]*)"', page_of(response))
    return [html.unescape(value) for value in found]


def names_of(response: Any) -> list[str]:
    """The names of a list's locks, in its order."""
    return re.findall(r'(?s)<th class="field-name[^>]*>.*?<a [^>]*>([^<]*)</a>', page_of(response))


def id_of(held: Lease | LockInfo) -> str:
    """What means this lease on the pages."""
    info = locks.using(held.store).get(held.name) if isinstance(held, Lease) else held
    assert info is not None
    return Lock.named(info.store, info.name, operators("held").digest_of(info)).id


def url_of(view: str, lock_id: str) -> str:
    return reverse(f"admin:django_tasklock_lock_{view}", args=[quote(lock_id)])


def tick(client: Client, *boxes: str, url: str = LIST, **more: str) -> Any:
    """Choose "Clear selected locks"; with ``post="yes"`` answer its question."""
    data = {"action": "delete_selected", "_selected_action": list(boxes), **more}
    return client.post(url, data, follow=True)
