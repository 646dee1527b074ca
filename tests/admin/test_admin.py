"""The admin's pages, through Django's own test client and a real Redis."""

from __future__ import annotations

import html
import re
from datetime import datetime, timedelta, timezone

import pytest
from django.contrib.admin.models import LogEntry
from django.core import signing
from django.core.cache import cache
from django.test import Client

from django_tasklock import Event, lock, locks
from django_tasklock.models import Lock
from django_tasklock.stores import stores
from tests.admin.conftest import (
    ADD,
    EVENTS,
    HEALTH,
    LIST,
    SEND,
    UserWith,
    boxes_of,
    id_of,
    names_of,
    page_of,
    taken,
    tick,
    url_of,
    words_of,
)
from tests.app.models import Job
from tests.conftest import UseCaches, UseRedis
from tests.findings import fenced, guard, thrown_away
from tests.inside import (
    Owner,
    instead_of_clearing,
    owner_record,
    pages_are_old,
    reserved_key,
    when_messages_are_sought,
)
from tests.mailroom import Mailroom
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import Meanwhile, held_by, holder, orphan, silent, waiter
from tests.store_cases import redis_cache
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("on_redis")]


def test_the_list_says_who_holds_what_and_counts_states(operator: Client) -> None:
    # Given locks that are held, one of which is renewed, and one whose process has died
    taken("video:1", task="videos.transcode")
    taken("video:2", renew=True)
    orphan("zebra")

    # I expect what needs attention to come first, and the others by age
    page = operator.get(LIST)
    assert names_of(page) == ["zebra", "video:1", "video:2"]
    words = words_of(page)
    assert "Locks 3" in words
    assert "all 3 gone 1 held 3" in words

    # And a time that is left where nobody renews it alone
    assert re.search(r"\b(10m00s|9m\d\ds)", words)
    assert page_of(page).count("<progress") == 2
    assert words.count(" renewed ") == 1

    # And the list to be narrowed to a state
    assert names_of(operator.get(LIST, {"state": "gone"})) == ["zebra"]


def test_what_needs_attention_comes_first(operator: Client) -> None:
    # Given names that are in another order than ages
    with lock("a:cools", ttl=600, cooldown=600):
        pass
    taken("c:first")
    taken("b:second")
    taken("d:waited-for")
    waiting = waiter("d:waited-for", 1)
    late = owner_record("videos.nightly") | {"host": "worker-9", "boot": "another"}
    held_by(late | {"ttl": 600, "renew": True}, "e:overdue", 300)
    orphan("f:gone")
    page = operator.get(LIST)
    assert names_of(page) == [
        "f:gone", "e:overdue", "d:waited-for", "c:first", "b:second", "a:cools",
    ]  # fmt: skip
    for state, found in {
        "overdue": "e:overdue",
        "waiting": "d:waited-for",
        "cooling": "a:cools",
    }.items():
        page = operator.get(LIST, {"state": state})
        assert names_of(page) == [found]
        # What is late runs down.
        assert page_of(page).count("<progress") == 1
    locks.clear("d:waited-for")
    waiting.result().release()


def test_the_list_is_narrowed_to_a_task(operator: Client) -> None:
    for number, task in enumerate(["videos.transcode", "videos.transcode", "shop.report"]):
        taken(f"lock:{number}", task=task)
    locks.hold("lock:3", 600, by="anna")
    assert "task: all tasks all tasks 4 shop.report 1 videos.transcode 2" in words_of(
        operator.get(LIST)
    )
    page = operator.get(LIST, {"task": "videos.transcode"})
    assert names_of(page) == ["lock:0", "lock:1"]
    assert "all 2 held 2" in words_of(page), "the counts are those of this task"
    # A link to a task that has no lock now does not show those of others.
    words = words_of(operator.get(LIST, {"task": "shop.orders", "state": "held"}))
    assert "No lock matches." in words
    assert "task: shop.orders" in words


@pytest.mark.parametrize("query", ["video:1", "video:*", "transcode", "id-1"])
def test_a_search_finds_by_name_beginning_and_words_and_a_key_of_other_code(
    operator: Client, query: str
) -> None:
    taken("video:1", task="videos.transcode", task_id="id-1")
    taken("report:2")
    cache.add("lock:legacy", 1, timeout=None)
    words = words_of(operator.get(LIST, {"q": query}))
    assert "1 result" in words
    assert "video:1" in words
    assert "report:2" not in words
    words = words_of(operator.get(LIST, {"q": "legacy"}))
    assert "other code" in words
    assert "never expires" in words


def test_of_very_many_the_page_reads_a_part_and_says_so(operator: Client) -> None:
    for number in range(1001):
        locks.store.acquire([f"video:{number:04}"], "t" * 22, 600, owner_record("videos.transcode"))
    page = operator.get(LIST)
    assert "Locks 1001" in words_of(page)
    assert "These are the 1,000 of 1001 locks that expire soonest." in words_of(page)
    assert len(boxes_of(page)) == 100
    # Beyond the last page is the last page: locks go while somebody looks at them.
    assert len(boxes_of(operator.get(LIST, {"p": "99"}))) == 100
    # A name is found all the same; a word is looked for in the part, which the page says.
    words = words_of(operator.get(LIST, {"q": "video:1000"}))
    # Django 6 has a heading of the pages there, for screen readers.
    assert re.search("Of the locks that were read: (Pagination locks )?1 lock ", words)
    assert "1 result" not in words
    words = words_of(operator.get(LIST, {"q": "transcode"}))
    assert "in all 1001 locks, words in the first 1,000." in words


def test_a_page_is_of_one_store(
    use_caches: UseCaches, redis_server: RedisServer, operator: Client
) -> None:
    use_caches(
        {name: redis_cache(redis_server.url) for name in ("default", "second")},
        {"default": {}, "second": {"CACHE": "second"}},
    )
    taken("video:1")
    assert locks.using("second").acquire("report:2", ttl=60)
    words = words_of(operator.get(LIST))
    assert "video:1" in words
    assert "report:2" not in words
    page = operator.get(LIST, {"store": "second"})
    assert f'href="{HEALTH}?store=second"' in page_of(page)
    words = words_of(page)
    assert "Locks 1" in words
    assert "report:2" in words
    assert "video:1" not in words


def test_view_lock_sees_and_changes_nothing(client_with: UserWith) -> None:
    lease = taken("video:1")
    client = client_with("view_lock")
    for url in (LIST, url_of("change", id_of(lease)), EVENTS, HEALTH):
        page = page_of(client.get(url))
        assert lease.token not in page
        assert "Clear…" not in page
        assert "Hold…" not in page
    assert client.get(url_of("delete", id_of(lease))).status_code == 403
    assert client.post(url_of("delete", id_of(lease)), {"post": "yes"}).status_code == 403
    assert client.get(ADD).status_code == 403
    assert client.post(ADD, {"name": "x", "duration": "1h"}).status_code == 403
    assert client.post(SEND).status_code == 403
    tick(client, id_of(lease), post="yes")
    assert lease.extend()


def test_without_view_lock_nothing_is_seen(client_with: UserWith) -> None:
    lease = taken("video:1")
    client = client_with("delete_lock")
    for url in (LIST, EVENTS, HEALTH, ADD, *(
        url_of(view, id_of(lease)) for view in ("change", "delete", "history")
    )):  # fmt: skip
        assert client.get(url).status_code == 403, url


def test_each_form_that_changes_something_has_the_csrf_token(operator: Client) -> None:
    lease = taken("video:1")
    orphan("gone:1")
    urls = [LIST, ADD, HEALTH, url_of("delete", id_of(lease))]
    for response in (*map(operator.get, urls), tick(operator, id_of(lease))):
        forms = re.findall(r'(?s)<form[^>]*method="post".*?</form>', page_of(response))
        assert len(forms) > 1, "the page's own, and that which ends the session"
        assert all("csrfmiddlewaretoken" in form for form in forms), forms


def test_a_lease_that_changed_hands_is_left_alone(operator: Client) -> None:
    seen, cleared = taken("video:1"), taken("video:2")
    ids = [id_of(seen), id_of(cleared)]
    seen.release()
    successor = taken("video:1")
    words = words_of(tick(operator, *ids, post="yes"))
    assert "Cleared: “video:2”." in words
    assert "changed hands: “video:1”." in words
    words = words_of(operator.post(url_of("delete", ids[0]), {"post": "yes"}, follow=True))
    assert "changed hands: “video:1”." in words
    assert successor.extend()
    # The entry is the lock's, and not the lease's.
    assert LogEntry.objects.get().object_id == "default:video:2"


def test_an_entry_is_written_before_a_store_is_asked(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = taken("video:1")
    entries: list[int] = []
    instead_of_clearing(monkeypatch, lambda: entries.append(LogEntry.objects.count()))
    operator.post(url_of("delete", id_of(lease)), {"post": "yes"})
    assert entries == [1]


def test_a_delete_page_without_a_lease_asks_for_that_of_now(operator: Client) -> None:
    lease = taken("video:1")
    for button in ("Clear…", "History"):
        assert button in page_of(operator.get(url_of("change", id_of(lease))))
    response = operator.post(url_of("delete", "default:video:1"), {"post": "yes"}, follow=True)
    assert "No, take me back" in words_of(response)
    assert "Its process is alive: two runs may overlap." in words_of(response)
    assert lease.extend()


def test_a_lock_is_held_and_a_hold_is_not_called_unsafe(operator: Client) -> None:
    form = {"name": "video:1", "duration": "2h", "reason": "deploy"}
    assert "“video:1” is held" in words_of(operator.post(ADD, form, follow=True))
    held = locks.get("video:1")
    assert held is not None
    assert held.reason == "deploy"
    assert LogEntry.objects.get().object_id == "default:video:1"
    page = page_of(operator.get(url_of("delete", id_of(held))))
    assert "The operator’s hold ends: jobs may start." in page
    assert "tasklock-unsafe" not in page
    # Who holds it is said on the form.
    assert "Held by operator" in words_of(operator.post(ADD, form))


def test_the_page_of_a_permit_holds_all_of_its_name(operator: Client) -> None:
    """A hold of one permit would pause nobody."""
    permit, plain = taken("tenant:7", slots=2), taken("video:1#1")
    for lease, name in ((permit, "tenant%3A7"), (plain, "video%3A1%231")):
        page = page_of(operator.get(url_of("change", id_of(lease))))
        assert re.findall(r'name=([^"&]*)[^>]*>Hold…', page) == [name]


def test_a_hold_waits_until_the_lock_is_free(operator: Client) -> None:
    lease = taken("video:1")
    form = {"name": "video:1", "duration": "2h", "wait": "on"}
    page = Meanwhile(lambda: words_of(operator.post(ADD, form, follow=True)))
    until(lambda: locks.waiters("video:1"))
    lease.release()
    assert "“video:1” is held" in page.result()


@pytest.mark.parametrize(
    "wrong", [{"name": "a b"}, {"duration": "soon"}, {"reason": "x" * 300}, {"name": ""}]
)
def test_what_cannot_be_meant_is_said_on_the_form(operator: Client, wrong: dict[str, str]) -> None:
    response = operator.post(ADD, {"name": "video:1", "duration": "2h", "reason": "", **wrong})
    assert "Please correct the error" in words_of(response)
    assert locks.list() == []


def test_the_page_of_a_free_lock_has_its_events(operator: Client) -> None:
    lease = taken("video:1")
    lock_id = id_of(lease)
    operator.post(url_of("delete", lock_id), {"post": "yes"})
    words = words_of(operator.get(url_of("change", lock_id)))
    assert "It is not locked." in words
    assert "cleared" in words
    response = operator.get(url_of("history", lock_id), follow=True)
    assert response.redirect_chain == [(f"{EVENTS}?q=video%3A1&store=default", 302)]


def test_the_page_of_a_lock_says_how_its_run_is(room: Mailroom, operator: Client) -> None:
    task = room.task(guard=guard())
    job = Job.objects.create(status="processing")
    # Given a run that has waited for a lock of another name
    now, run = datetime.now(timezone.utc), Owner(task=task.name, task_id="the-run")
    stores["default"].record([Event("waited", "ffmpeg", "default", now, run, seconds=7.0)])
    lease = taken(f"job:{job.pk}", task=task.name, task_id="the-run")

    words = words_of(operator.get(url_of("change", id_of(lease))))

    assert "State alive" in words
    assert f"Guarded row app.Job {job.pk}: processing" in words
    assert re.search("What happened to its task .* waited 7s ffmpeg", words)


def test_the_page_of_a_lock_says_whether_its_process_lives(
    room: Mailroom, operator: Client
) -> None:
    owner = owner_record(room.task().name, "the-run")
    held_by(owner | {"start": 1}, "job:gone")
    held_by(owner | {"host": "worker-9", "boot": "another"}, "job:elsewhere")
    locks.hold("job:hold", 600, by="anna")
    said = {"gone": "gone", "elsewhere": "unknown", "hold": "operator"}
    for name, state in said.items():
        words = words_of(operator.get(url_of("change", f"default:job:{name}")))
        assert f" State {state} " in words


def test_why_a_task_was_skipped_is_found_by_its_id(operator: Client) -> None:
    taken("video:1", task="videos.transcode", task_id="the-holder")
    now, skipped = datetime.now(timezone.utc), Owner(task="videos.transcode", task_id="the-skipped")
    stores["default"].record([
        Event("skipped", "video:1", "default", now, skipped, holder=holder("video:1").owner,
              reason="already_processing"),
        Event("cleared", "other:1", "default", now, Owner(), by="anna"),
    ])  # fmt: skip
    words = words_of(operator.get(EVENTS, {"q": "the-skipped"}))
    for word in ("skipped", "video:1", "the-holder", "already_processing"):
        assert word in words
    assert "other:1" not in words
    assert "other:1" in words_of(operator.get(EVENTS, {"q": " other:1 "}))


def test_equal_events_are_one_with_a_count_on_the_page_and_on_that_of_their_lock(
    operator: Client,
) -> None:
    now = datetime.now(timezone.utc)
    stores["default"].record([
        *[Event("cleared", "video:1", "default", now, Owner(), by=who) for who in ("anna", "bob")],
        *[
            Event("skipped", "video:1", "default", now + timedelta(seconds=second),
                  Owner(task="videos.transcode", task_id=f"id-{second}"), reason="coalesced")
            for second in range(200)
        ],
    ])  # fmt: skip
    for url in (EVENTS, url_of("change", Lock.named("default", "video:1").id)):
        words = words_of(operator.get(url))
        assert "skipped × 200 / 3m19s" in words
        assert words.count("id-199") == 1
        assert "id-198" not in words
        assert "anna" in words
        assert "bob" in words
    assert "id-7" in words_of(operator.get(EVENTS, {"q": "id-7"}))


def test_health_clears_those_whose_owner_is_gone(operator: Client) -> None:
    orphan("gone:1")
    orphan("gone:2")
    response = operator.get(HEALTH)
    assert "Clear all whose owner is gone…" in page_of(response)
    boxes = boxes_of(response)
    assert len(boxes) == 2
    assert "Its process is gone: no two runs overlap." in words_of(tick(operator, *boxes))
    tick(operator, *boxes, post="yes")
    assert locks.list() == []
    assert "The doctor finds nothing wrong." in words_of(operator.get(HEALTH))


def test_health_sends_a_lost_row_again_once(room: Mailroom, client_with: UserWith) -> None:
    room.task(guard=guard())
    job = Job.objects.create(status="processing")
    may_not = client_with("view_lock", "delete_lock")
    assert " again</button>" not in page_of(may_not.get(HEALTH))
    client = client_with("view_lock", "delete_lock", "view_job", "change_job")
    page = page_of(client.get(HEALTH))
    row = html.unescape(re.findall(r'name="row" value="([^"]*)"', page)[0])
    assert may_not.post(SEND, {"row": row}).status_code == 403
    assert "Sent again" in words_of(client.post(SEND, {"row": row}, follow=True))
    assert len(room.waiting()) == 1
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.object_repr) == (str(job.pk), str(job))
    assert "Nothing was sent" in words_of(client.post(SEND, {"row": row}, follow=True))
    assert len(room.waiting()) == 1
    assert "Nothing was sent" in words_of(client.post(SEND, {"row": "nonsense"}, follow=True))


def test_health_asks_which_task_and_sends_no_row_of_another_store(
    room: Mailroom, client_with: UserWith
) -> None:
    rows = {"guard": guard(), "lock_name": "job:{job}"}
    room.task(name="film.first", **rows)
    room.task(name="film.second", **rows)
    room.task(name="mail.send", guard=fenced(source="new", to="sending"))
    Job.objects.create(status="processing")
    taken("another:1").release()
    Job.objects.create(status="sending", lock_fence=1_700_000_000_000_000)
    Job.objects.create(status="sending", lock_fence=None)
    client = client_with("view_lock", "delete_lock", "view_job", "change_job")
    page = page_of(client.get(HEALTH))
    buttons = re.findall(r'name="row" value="([^"]*)">Send (\S+) again<', page)
    named = ["film.first", "film.second", "mail.send"]
    assert sorted(task for _, task in buttons) == named
    assert "Its run may live in another store, or with" in html.unescape(page)
    # Of a row that is surely lost, and of no other, all are sent by one button
    assert "Send all again" not in page
    for row, task in buttons:
        if task != "film.first":
            chosen = {"row": html.unescape(row)}
            assert "Sent again" in words_of(client.post(SEND, chosen, follow=True))
    assert [message.task for message in room.waiting()].count("mail.send") == 1
    assert len(room.waiting()) == 2


def test_health_ends_the_reservation_that_was_shown(
    room: Mailroom, client_with: UserWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = room.task(unique_while="queued")
    thrown_away(room, task.delay(1).id)
    thrown_away(room, task.delay(2).id)
    assert "End the reservation" not in page_of(client_with("view_lock").get(HEALTH))
    client = client_with("view_lock", "delete_lock")
    page = page_of(client.get(HEALTH))
    assert "End all these reservations" in page
    # In a form of which they are buttons, and not beside it
    table = page.partition(f'<form method="post" action="{SEND}">')[2].rpartition("</form>")[0]
    buttons = re.findall(r'<button type="submit"[^>]*name="job" value="(.*)"', table)
    shown = [html.unescape(each) for each in buttons]
    # Meanwhile the next call of one of them was sent
    task.delay(1)
    words = words_of(client.post(SEND, {"job": shown}, follow=True))
    assert "Ended, so the next call is sent: “job:2”." in words
    assert "Nothing to end any more: “job:1”." in words
    logged = LogEntry.objects.values_list("object_id", flat=True)
    assert [*logged] == ["default:job:2", "default:job:1"]
    assert [each.key for each in stores["default"].reservations()] == [
        reserved_key(task.name, "job:1")
    ]
    assert client.post(SEND, {"job": "nonsense"}).status_code == 403
    of_another_release = signing.dumps({"task": task.name}, salt="tasklock reservation")
    assert client.post(SEND, {"job": of_another_release}).status_code == 403
    pages_are_old(monkeypatch)
    assert client.post(SEND, {"job": shown}).status_code == 403


def test_reservations_that_may_be_right_are_ended_one_by_one(
    room: Mailroom, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their messages were not found, and may wait where nobody looks."""
    task = room.task(unique_while="queued")
    sent = [task.delay(job).id for job in range(2)]
    when_messages_are_sought(monkeypatch, lambda _, jobs: [(job, False) for job in jobs])
    page = page_of(operator.get(HEALTH))
    assert page.count("End the reservation") == len(sent)
    assert "End all these reservations" not in page


def test_no_page_but_health_runs_the_doctor(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = taken("video:1")
    orphan("gone:1")
    assert "owner gone" in words_of(operator.get(HEALTH))
    asked = silent(monkeypatch, "check")
    for url in (LIST, EVENTS, url_of("change", id_of(lease))):
        assert operator.get(url).status_code == 200
    assert asked == []


def test_an_outage_is_said_and_is_no_number(
    use_redis: UseRedis, cut_proxy: CutProxy, operator: Client
) -> None:
    use_redis(cut_proxy.url)
    lease = taken("video:1")
    lock_id = id_of(lease)
    with cut_proxy.away():
        change = url_of("change", lock_id)
        for url in (LIST, f"{LIST}?q=video:1", f"{LIST}?state=gone&task=none", change):
            page = operator.get(url, follow=True)
            words = words_of(page)
            assert "The store “default” is unavailable" in words
            assert not re.search("0 (locks|results)|(Locks|all|gone) 0", words)
            assert "No lock" not in words
            assert page_of(page).index("is unavailable") < page_of(page).index('id="searchbar"')
        assert "is unavailable" in words_of(operator.get(EVENTS))
        assert "The store is unavailable" in words_of(operator.get(HEALTH))
        assert "is unavailable" in words_of(tick(operator, lock_id, post="yes"))
        assert "is unavailable" in words_of(operator.post(ADD, {"name": "x", "duration": "1h"}))


def test_an_outage_that_begins_while_it_is_read_is_no_number(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken("video:1")
    assert "Locks 1 " in words_of(operator.get(LIST))
    silent(monkeypatch, "page")
    words = words_of(operator.get(LIST))
    assert "The store “default” is unavailable" in words
    assert not re.search("1 lock|Locks [01]", words)


def test_hostile_text_is_text(operator: Client) -> None:
    evil = "'\"><evil></script>{{7*7}}"
    taken(evil, task=evil, task_id=evil)
    locks.clear(evil, by=evil)
    lease = taken(evil, task=evil, task_id=evil)
    for url in (
        LIST, url_of("change", id_of(lease)), url_of("delete", id_of(lease)), EVENTS,
    ):  # fmt: skip
        page = page_of(operator.get(url, {"q": evil} if url in (LIST, EVENTS) else {}))
        assert "<evil" not in page, url
        assert "{{7*7}}" in page, url
