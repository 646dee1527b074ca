"""An operator holds a lock from the admin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.admin.models import ADDITION, LogEntry
from django.contrib.auth.models import User
from django.db import DatabaseError, connection
from django.test import Client

from django_tasklock import locks
from tests.admin.test_admin import (
    LIST,
    UserWith,
    a_store_down,
    acquire,
    change_url,
    client_with,
    on_redis,
    operator,
    page_of,
    words_of,
)
from tests.admin.test_admin_guarded import MakeTask, job_url, make_task
from tests.app.models import Job
from tests.conftest import UseCaches
from tests.steps import holder
from tests.store_cases import members, own_prefix, quorum_store

__all__ = ["a_store_down", "client_with", "make_task", "on_redis", "operator"]
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning"),
]

LOCMEM = {
    "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
    "LOCATION": own_prefix(),
}
HOLD = f"{LIST}hold/"
FORM = {"name": "video:1", "ttl": "2h", "reason": "database migration"}


def post(client: Client, **changes: str) -> Any:
    return client.post(HOLD, FORM | changes, follow=True)


def test_a_lock_is_held_by_the_user_and_an_entry_written(on_redis: None, operator: Client) -> None:
    # Given the list with its button
    assert f'href="{HOLD}' in page_of(operator.get(LIST))
    assert "Hold this lock" in page_of(operator.get(HOLD))

    # When the form is sent
    words = words_of(post(operator))

    # I expect the user to hold the lock, and everybody to see it
    user = User.objects.get()
    info = holder("video:1")
    assert (info.held_by, info.reason, info.granted) == (user.username, FORM["reason"], 7200)
    assert "“video:1” is held for 2h00m: jobs that need it are skipped or wait." in words
    for page in (words, words_of(operator.get(change_url(info)))):
        assert f"operator {user.username}" in page
        assert "database migration" in page
        assert "gone" not in page.replace("owner gone", "")
    entry = LogEntry.objects.get()
    assert (entry.user, entry.action_flag, entry.object_repr) == (user, ADDITION, "video:1")
    assert entry.change_message == (
        "Held for 2h00m in the store “default”. Reason: database migration"
    )
    assert "Held for 2h00m" in words_of(operator.get(change_url(info).replace("change", "history")))


def test_it_is_found_by_its_operator_and_its_reason(on_redis: None, operator: Client) -> None:
    locks.hold("video:1", 600, "alice", "database migration")
    locks.hold("video:2", 600)
    assert "video:1" in words_of(operator.get(LIST, {"q": "alice"}))
    assert "video:2" not in words_of(operator.get(LIST, {"q": "migration"}))
    assert "an operator" in words_of(operator.get(LIST))


def test_a_lock_that_is_held_is_not_taken_away(on_redis: None, operator: Client) -> None:
    lease = acquire("video:1")
    response = post(operator)
    words = words_of(response)
    assert f"It is held by {lease.owner.host}:{lease.owner.pid}." in words
    assert 'value="database migration"' in page_of(response)  # what was typed is not lost
    assert holder("video:1").token == lease.token
    lease.release()
    locks.hold("video:1", 600, "alice")
    assert "It is held by operator alice." in words_of(post(operator))
    assert LogEntry.objects.count() == 0


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "a name", "A name has printable characters and no spaces."),
        ("ttl", "soon", "That is not a duration of a lock."),
        ("ttl", "9999d", "That is not a duration of a lock."),
        ("reason", "é" * 128, "A reason has at most 255 bytes of UTF-8"),
    ],
)
def test_what_cannot_be_meant_is_said(
    on_redis: None, operator: Client, field: str, value: str, message: str
) -> None:
    assert message in words_of(post(operator, **{field: value}))
    assert locks.list() == []
    assert LogEntry.objects.count() == 0


def test_a_name_in_the_address_fills_the_form(on_redis: None, operator: Client) -> None:
    page = page_of(operator.get(HOLD, {"name": '"><b>video'}))
    assert "&quot;&gt;&lt;b&gt;video" in page
    assert '"><b>' not in page
    assert locks.list() == []


def test_where_there_are_two_stores_one_is_chosen(use_caches: UseCaches, operator: Client) -> None:
    memory = {"BACKEND": "django_tasklock.stores.memory.MemoryStore"}
    locmem = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    use_caches({"default": locmem}, {"default": memory, "other": memory})
    assert '<select name="store"' in page_of(operator.get(HOLD))
    assert "is not one of the available choices" in words_of(post(operator, store="nowhere"))
    assert "is held for" in words_of(post(operator, store="other"))
    assert locks.using("other").is_locked("video:1")
    assert not locks.is_locked("video:1")


def test_an_outage_is_said_and_nothing_is_held(a_store_down: None, operator: Client) -> None:
    words = words_of(post(operator, store="dead"))
    assert "The store “dead” is unavailable" in words
    assert "is held for" not in words
    assert LogEntry.objects.count() == 0


@pytest.fixture
def no_room_for() -> Iterator[Callable[[str], None]]:
    """``no_room_for("INSERT")``: the database takes no log entry, as on a full disk."""

    def refuse(verb: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                f"CREATE TRIGGER full BEFORE {verb} ON django_admin_log "
                "BEGIN SELECT RAISE(ABORT, 'No space left on device'); END"
            )

    yield refuse
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER IF EXISTS full")


@pytest.mark.django_db(transaction=True)
def test_nothing_is_held_without_a_trace(
    on_redis: None, operator: Client, no_room_for: Callable[[str], None]
) -> None:
    # Given a database that takes no entry
    no_room_for("INSERT")

    # When the form is sent, I expect an error, and the lock to be free
    with pytest.raises(DatabaseError, match="No space left"):
        post(operator)
    assert locks.list() == []


@pytest.mark.django_db(transaction=True)
def test_an_entry_that_could_not_be_finished_says_what_was_asked(
    on_redis: None, operator: Client, no_room_for: Callable[[str], None]
) -> None:
    no_room_for("UPDATE")
    with pytest.raises(DatabaseError, match="No space left"):
        post(operator)
    assert holder("video:1").held_by
    entry = LogEntry.objects.get()
    assert (entry.action_flag, entry.object_repr) == (ADDITION, "video:1")
    assert entry.change_message == (
        "Asked to hold it for 2h00m in the store “default”; no answer yet. "
        "Reason: database migration"
    )


def test_a_strange_user_name_is_made_printable(on_redis: None, operator: Client) -> None:
    User.objects.update(username="al\u202eice" + "x" * 100)
    post(operator)
    assert (holder("video:1").held_by or "").startswith("al\\u202eicexxx")


def test_a_row_that_an_operator_holds_says_who_and_why(
    on_redis: None, make_task: MakeTask, client_with: UserWith
) -> None:
    job = Job.objects.create()
    make_task("job:{job_id}")
    locks.hold(f"job:{job.pk}", 600, "alice", "database migration")
    editor = client_with("view_job", "change_job")
    words = words_of(editor.get(job_url(job)))
    assert "Held by operator alice, reason: database migration. Lock “job:" in words
    refused = editor.post(job_url(job), {"status": "done", "done_count": "7"})
    assert "Nothing is saved or deleted here until it ends." in words_of(refused)


def test_a_duration_that_the_store_does_not_grant_is_said_on_the_form(
    five_servers: Any, use_caches: UseCaches, operator: Client
) -> None:
    caches, tasklock = members([server.url for server in five_servers])
    quorum = quorum_store(LONGEST_TTL=300, PERSISTENT=list(tasklock))
    use_caches({"default": LOCMEM} | caches, {"default": quorum} | tasklock)
    words = words_of(post(operator, store="default"))
    assert "grants leases of 300 s at most (LONGEST_TTL), not of 7200 s" in words
    assert not locks.is_locked("video:1")
    assert "“video:1” is held for 4m" in words_of(post(operator, store="default", ttl="4m"))
