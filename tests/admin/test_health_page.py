"""The page "Health": groups with counts, links, and buttons that act on what was shown."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.core.cache import cache
from django.db import DatabaseError, connections
from django.test import Client

from django_tasklock import StoreUnavailable, locks
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.admin import health_page
from django_tasklock.guards import StatusGuard
from django_tasklock.operators import doctor as doctor_module
from django_tasklock.operators import work
from django_tasklock.operators.doctor import looks
from django_tasklock.operators.survey import survey
from django_tasklock.stores import stores
from tests.admin.test_admin import (
    LIST,
    UserWith,
    client_with,
    leases_of,
    operator,
    page_of,
    words_of,
)
from tests.app.models import Job
from tests.conftest import UseRedis
from tests.mailroom import Mailroom, mailroom
from tests.operators.test_doctor import fenced, guard
from tests.servers import RedisServer
from tests.steps import all_of

__all__ = ["client_with", "operator"]
pytestmark = pytest.mark.django_db(transaction=True)
HEALTH = f"{LIST}health/"
REQUEUE = f"{HEALTH}requeue/"
CLEAR_GONE = f"{HEALTH}clear/"


@pytest.fixture
def room(use_redis: UseRedis, redis_server: RedisServer) -> Iterator[Mailroom]:
    use_redis()
    with mailroom(redis_server.url) as room:
        yield room


@pytest.fixture
def sender(client_with: UserWith) -> Client:
    return client_with("view_lock", "delete_lock", "view_job", "change_job")


def leave_behind(*names: str, task: str = "task") -> None:
    """Locks of a process that is gone."""
    gone = owner_record(task, "id") | {"start": 1}
    for name in names:
        locks.store.acquire(name, new_token(), 600, gone)


def values_of(response: Any, name: str) -> list[str]:
    """What the page's buttons of that name would send."""
    found = re.findall(rf'<button[^>]* name="{name}" value="([^"]*)"', page_of(response))
    return [html.unescape(each) for each in found]


def rows_of(response: Any) -> str:
    """What the first button "Send again" of a row sends."""
    return values_of(response, "rows")[-1]


def logged() -> list[str]:
    return list(LogEntry.objects.order_by("pk").values_list("change_message", flat=True))


# ------------------------------------------------------------------------------ groups


def test_a_lost_row_that_an_operator_holds_has_no_button_to_send_it(
    room: Mailroom, sender: Client
) -> None:
    room.task(guard=fenced())
    job = Job.objects.create(status="processing")
    assert locks.hold(f"job:{job.pk}", 600, "alice", "a migration") is not None
    page = sender.get(HEALTH)
    words = words_of(page)
    assert f"an operator holds its lock job:{job.pk}: alice, a migration" in words
    assert "After the hold, send it again" in words
    assert values_of(page, "rows") == []


def test_findings_are_grouped_and_counted_and_lead_on(room: Mailroom, sender: Client) -> None:
    # Given more lost rows, owners that are gone, and keys without a TTL than a group shows
    room.task(guard=fenced())
    jobs = [Job.objects.create(status="processing") for _ in range(30)]
    leave_behind(*(f"gone:{number:03}" for number in range(40)))
    for number in range(26):
        cache.set(f"lock:forever:{number:02}", 1, timeout=None)

    page = sender.get(HEALTH)
    words, text = words_of(page), page_of(page)

    # I expect each with its count, and a link to all
    assert "lost work 30 Show all" in words
    assert "owner gone 40 Show all" in words
    assert "no TTL 26 Show all" in words
    assert text.count("nobody holds its lock.") == health_page.SHOWN
    assert text.count("held by a process that is gone.") == health_page.SHOWN
    for url in (
        f"{HEALTH}?kind=lost+work&amp;page=1",
        f"{LIST}?state=gone",
        f"{LIST}?state=endless",
    ):
        assert f'href="{url}"' in text, url
    # And each to lead to the lock, or to the row
    assert f'href="/admin/app/job/{jobs[0].pk}/change/">app.Job {jobs[0].pk}</a>' in text
    assert 'href="/admin/django_tasklock/lock/default_3Agone_3A000/change/">gone:000</a>' in text
    listed = words_of(sender.get(f"{LIST}?state=gone"))
    assert "40 locks" in listed


def test_the_findings_of_one_kind_are_paged(
    room: Mailroom, sender: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_page, "ROWS_PER_PAGE", 4)
    room.task(guard=fenced())
    jobs = [Job.objects.create(status="processing").pk for _ in range(10)]
    leave_behind("gone")
    seen: list[int] = []
    url: str | None = f"{HEALTH}?kind=lost+work"
    for page in (1, 2, 3):
        assert url
        text = page_of(sender.get(url))
        assert f"Page {page}" in text
        assert "gone" not in words_of(sender.get(url))
        seen += map(int, re.findall(r">app\.Job (\d+)</a>", text))
        following = re.search(r'<a href="([^"]*)">Next page</a>', text)
        url = following[1].replace("&amp;", "&") if following else None
    assert (seen, url) == (jobs, None)
    assert "There are no more." in words_of(sender.get(f"{HEALTH}?kind=lost+work&page=9"))
    assert "Nothing of this kind is wrong." in words_of(sender.get(f"{HEALTH}?kind=fence"))
    for odd in ("kind=lost+work&page=-1", "kind=lost+work&page=x", "kind=nonsense", "page=2"):
        assert sender.get(f"{HEALTH}?{odd}").status_code == 200


def database_down(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(self: StatusGuard) -> Any:
        raise DatabaseError("the server has gone away")

    monkeypatch.setattr(StatusGuard, "rows", rows)


def no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        raise ModuleNotFoundError("No module named 'torch'")

    monkeypatch.setattr(work, "loaders", [load])


@pytest.mark.parametrize("kind", ["lost+work", "fence"])
@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (database_down, "app.Job: its rows are not known: the server has gone away"),
        (no_import, "cannot be imported, so what they work on is not known here: No module named"),
        (None, "app.Job: Rows that are “processing” and whose locks’ names are not known: 1."),
    ],
)
def test_rows_that_are_not_known_are_not_called_right(
    room: Mailroom, sender: Client, monkeypatch: pytest.MonkeyPatch, kind: str, trouble: Any,
    said: str,
) -> None:  # fmt: skip
    # Given a row at work under a lock whose name does not follow from the row
    room.task(guard=guard(), lock_name="{job}:{other}")
    Job.objects.create(status="processing")
    if trouble is not None:
        trouble(monkeypatch)

    # I expect the page to say what it does not know, and not that nothing is wrong
    words = words_of(sender.get(f"{HEALTH}?kind={kind}"))
    assert said in words
    assert "Nothing of this kind is wrong." not in words


def test_counting_ends_and_says_so(
    room: Mailroom, sender: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_module, "MOST_ROWS", 40)
    room.task(guard=fenced())
    Job.objects.bulk_create([Job(status="processing") for _ in range(45)])
    assert "lost work more than 40 Show all" in words_of(sender.get(HEALTH))
    (group,) = survey(looks(), 3)
    assert (group.count, group.more, len(group.first)) == (40, True, 3)


# ------------------------------------------------------------------------------ clearing


def test_a_lock_is_cleared_by_its_button_through_the_page_that_asks(
    room: Mailroom, sender: Client
) -> None:
    leave_behind("gone:1", "gone:2")
    page = sender.get(HEALTH)
    lease = values_of(page, "lease")[0]
    url = "/admin/django_tasklock/lock/default_3Agone_3A1/delete/"
    assert f'formaction="{url}"' in page_of(page)
    asked = sender.post(url, {"lease": lease, "back": "health"})
    assert "Its process is gone: no two runs overlap." in words_of(asked)
    assert locks.is_locked("gone:1")
    answer: Any = sender.post(f"{LIST}clear/", {"leases": leases_of(asked), "back": "health"})
    assert answer.url == HEALTH
    assert not locks.is_locked("gone:1")
    assert locks.is_locked("gone:2")
    assert "gone:1 It is held" not in words_of(sender.get(HEALTH))
    # The lease that was shown, and not the next one of the lock
    leave_behind("gone:1")
    sender.post(f"{LIST}clear/", {"leases": leases_of(asked), "back": "health"})
    assert locks.is_locked("gone:1")


def test_those_whose_owner_is_gone_are_cleared_in_parts(
    room: Mailroom, sender: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_page, "LOCKS_PER_CLEAR", 6)
    leave_behind(*(f"gone:{number}" for number in range(10)))
    alive = locks.acquire("alive", ttl=600)
    assert "Clear up to 6 whose owner is gone…" in words_of(sender.get(HEALTH))
    for left in (4, 0):
        asked = sender.post(CLEAR_GONE, {"back": "health"})
        sender.post(f"{LIST}clear/", {"leases": leases_of(asked), "back": "health"})
        assert locks.count("gone:") == left
    assert alive
    assert alive.held
    assert locks.is_locked("alive")
    answer = sender.post(CLEAR_GONE, {"back": "health"}, follow=True)
    assert "No lock’s owner is known to be gone any more." in words_of(answer)


# ------------------------------------------------------------------------------ sending again


def test_a_lost_row_is_sent_again_once(room: Mailroom, sender: Client) -> None:
    runs: list[int] = []
    task = room.task(lambda self, job: runs.append(job), guard=fenced())
    job = Job.objects.create(status="processing", lock_fence=7)
    other = Job.objects.create(status="processing")
    rows = values_of(sender.get(HEALTH), "rows")
    (of_job,) = [
        each for each in rows if json.loads(each) == [[task.name, "default", str(job.pk), 7]]
    ]

    # When its button is pressed twice
    first = words_of(sender.post(REQUEUE, {"rows": of_job}, follow=True))
    second = words_of(sender.post(REQUEUE, {"rows": of_job}, follow=True))

    # I expect one message, an entry in the row's log, and the row to be worked on
    assert f"“app.Job {job.pk}” was sent again." in first
    assert f"“app.Job {job.pk}” was sent a moment ago, and not again." in second
    (message,) = room.waiting()
    assert message.kwargs == {"job": job.pk}
    assert logged() == [f"Sent its task again: {task.name}[{message.id}]."]
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.get_edited_object()) == (str(job.pk), job)
    room.work_off()
    assert runs == [job.pk]
    assert "was sent" not in words_of(sender.get(HEALTH))
    third = words_of(sender.post(REQUEUE, {"rows": of_job}, follow=True))
    assert "is not lost any more, and was not sent." in third
    assert room.waiting() == []
    assert f"app.Job {job.pk} The row" not in third
    assert f"app.Job {other.pk} The row" in third


def test_all_that_are_shown_are_sent_together_and_by_two_operators_once(
    room: Mailroom, client_with: UserWith
) -> None:
    room.task(guard=fenced())
    jobs = [Job.objects.create(status="processing").pk for _ in range(8)]
    both = [client_with("view_lock", "delete_lock", "view_job", "change_job") for _ in range(2)]
    everything = values_of(both[0].get(HEALTH), "rows")[0]
    assert len(json.loads(everything)) == 8
    assert "Send these 8 again" in words_of(both[0].get(HEALTH))

    def press(client: Client) -> int:
        try:
            return int(client.post(REQUEUE, {"rows": everything}).status_code)
        finally:
            connections.close_all()

    assert all_of(*(lambda client=client: press(client) for client in both)) == [302, 302]
    assert sorted(message.kwargs["job"] for message in room.waiting()) == jobs
    assert len(logged()) == 8


def test_a_row_that_was_claimed_again_meanwhile_is_another_one(
    room: Mailroom, sender: Client
) -> None:
    room.task(guard=fenced())
    job = Job.objects.create(status="processing", lock_fence=7)
    rows = rows_of(sender.get(HEALTH))
    # Another run claimed it, and died as well: that one was not shown.
    Job.objects.filter(pk=job.pk).update(lock_fence=8)
    assert "not lost any more" in words_of(sender.post(REQUEUE, {"rows": rows}, follow=True))
    # Or it lives
    Job.objects.filter(pk=job.pk).update(lock_fence=7)
    assert locks.acquire(f"job:{job.pk}", ttl=600)
    assert "not lost any more" in words_of(sender.post(REQUEUE, {"rows": rows}, follow=True))
    assert (room.waiting(), logged()) == ([], [])


def test_who_may_not_change_the_rows_does_not_send_them(
    room: Mailroom, sender: Client, client_with: UserWith
) -> None:
    room.task(guard=guard())
    job = Job.objects.create(status="processing")
    leave_behind("gone")
    rows = rows_of(sender.get(HEALTH))
    for codenames, code, buttons in (
        (("view_lock",), 403, (0, 0)),
        (("view_lock", "change_job"), 403, (0, 0)),
        (("view_lock", "delete_lock"), 403, (0, 1)),
        (("delete_lock", "change_job"), 403, None),
        (("view_lock", "delete_lock", "change_job"), 302, (1, 1)),
    ):
        client = client_with(*codenames)
        if buttons is not None:
            page = client.get(HEALTH)
            found = len(values_of(page, "rows")), len(values_of(page, "lease"))
            assert found == buttons, codenames
            linked = f"/admin/app/job/{job.pk}/change/" in page_of(page)
            assert linked == ("change_job" in codenames)
        assert client.get(REQUEUE).status_code in (403, 405)
        assert client.post(REQUEUE, {"rows": rows}).status_code == code, codenames
        if "delete_lock" not in codenames:
            assert client.post(CLEAR_GONE).status_code == 403
    assert len(room.waiting()) == 1
    assert sender.get(REQUEUE).status_code == 405
    assert sender.get(CLEAR_GONE).status_code == 405


@pytest.mark.parametrize(
    "rows",
    ["", "{}", "[1]", "[[1,2,3,4]]", '[["a","b","c"]]', "[" * 9000, "[" + "[]," * 200 + "[]]"],
)
def test_what_the_page_did_not_make_is_a_bad_request(
    room: Mailroom, sender: Client, rows: str
) -> None:
    assert sender.post(REQUEUE, {"rows": rows}).status_code == 400


def test_what_never_was_is_not_sent(room: Mailroom, sender: Client) -> None:
    task = room.task(guard=guard())
    for row in (["nothing", "default", "1", None], [task.name, "default", "x'\"", None]):
        answer = sender.post(REQUEUE, {"rows": json.dumps([row])}, follow=True)
        assert "is not lost any more" in words_of(answer)
    assert room.waiting() == []


def test_an_outage_is_said_as_one(
    use_redis: UseRedis, redis_server: RedisServer, own_redis_server: RedisServer, sender: Client
) -> None:
    use_redis(own_redis_server.url)
    with mailroom(redis_server.url) as room:
        room.task(guard=guard())
        Job.objects.create(status="processing")
        rows = rows_of(sender.get(HEALTH))
        own_redis_server.kill()
        for url in (REQUEUE, CLEAR_GONE):
            words = words_of(sender.post(url, {"rows": rows, "back": "health"}, follow=True))
            assert "The store “default” is unavailable" in words
            assert "not lost" not in words
            assert "No lock’s owner" not in words
        assert (room.waiting(), logged()) == ([], [])


def test_a_broker_that_does_not_take_it_is_said(room: Mailroom, sender: Client) -> None:
    task = room.task(guard=guard(), serializer="no-such")
    for _ in range(3):
        Job.objects.create(status="processing")
    rows = values_of(sender.get(HEALTH), "rows")[0]
    words = words_of(sender.post(REQUEUE, {"rows": rows}, follow=True))
    assert "could not be sent, and none after it was tried:" in words
    assert "not lost any more" not in words
    (entry,) = logged()
    assert entry.startswith("Not sent again: ")
    # And the next press sends all
    task.serializer, task._exec_options = "json", None
    assert "were sent again" in words_of(sender.post(REQUEUE, {"rows": rows}, follow=True))
    assert len(room.waiting()) == 3


def test_a_store_that_fails_between_two_rows_leaves_what_was_sent(
    room: Mailroom, sender: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.task(guard=guard())
    for _ in range(3):
        Job.objects.create(status="processing")
    rows = values_of(sender.get(HEALTH), "rows")[0]
    store: Any = stores["default"]
    reserve, asked = store.reserve, []

    def once(*arguments: Any) -> Any:
        asked.append(arguments)
        if len(asked) > 1:
            raise StoreUnavailable("default", "it is gone")
        return reserve(*arguments)

    monkeypatch.setattr(store, "reserve", once)
    words = words_of(sender.post(REQUEUE, {"rows": rows}, follow=True))
    assert "was sent again." in words
    assert "The store “default” is unavailable" in words
    assert len(room.waiting()) == 1
    assert [entry.partition(":")[0] for entry in logged()] == [
        "Sent its task again", "Not sent again",
    ]  # fmt: skip
