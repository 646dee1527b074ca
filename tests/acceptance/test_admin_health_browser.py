"""In Chromium: the page Health, from which an operator acts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from django_tasklock import locks
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from tests.acceptance.test_admin_browser import (
    LIST,
    Open,
    acquire,
    browser,
    errors,
    live_server,
    open_as,
)
from tests.acceptance.test_admin_history_browser import SIZES, keep_picture, until_it_fits
from tests.app.models import Job
from tests.integration.operators.test_doctor import fenced
from tests.mailroom import Mailroom, mailroom
from tests.servers import RedisServer
from tests.steps import Meanwhile
from tests.waiting import until

__all__ = ["browser", "errors", "live_server", "open_as"]
pytestmark = pytest.mark.slow
HEALTH = f"{LIST}health/"
MAY = ("view_lock", "delete_lock", "view_job", "change_job")


@pytest.fixture
def room(redis_server: RedisServer) -> Iterator[Mailroom]:
    with mailroom(redis_server.url) as room:
        yield room


def leave_behind(*names: str) -> None:
    """Locks of a process that is gone."""
    for name in names:
        locks.store.acquire(name, new_token(), 600, owner_record("videos.process") | {"start": 1})


def finding(page: Page, what: str) -> Locator:
    return page.locator("#health_list tr").filter(
        has=page.get_by_role("rowheader", name=what, exact=True)
    )


def group(page: Page, kind: str) -> Locator:
    return page.locator("#health_list .tasklock-group").filter(has_text=kind)


@SIZES
def test_findings_have_counts_and_lead_to_the_lock_and_the_row(
    open_as: Open, room: Mailroom, errors: list[str], width: int, height: int
) -> None:
    # Given owners that are gone, lost rows, and a thread that waits for its own lock
    room.task(guard=fenced())
    jobs = [Job.objects.create(status="processing") for _ in range(3)]
    size = {"width": width, "height": height}
    page = open_as(*MAY, path=f"{LIST}queued/", viewport=size)
    leave_behind(*(f"video:{number}" for number in range(30)))

    def twice() -> None:
        acquire("report")
        assert locks.acquire("report", ttl=60, wait=300)

    thread = Meanwhile(twice)
    until(lambda: getattr(locks.get("report"), "waiters", 0) == 1)

    # When the page is opened
    page.goto(HEALTH)

    # I expect each kind with its count
    expect(group(page, "owner gone").locator(".tasklock-number")).to_have_text("30")
    expect(group(page, "lost work").locator(".tasklock-number")).to_have_text("3")
    expect(group(page, "deadlock").locator(".tasklock-number")).to_have_text("1")
    expect(finding(page, "report")).to_contain_text("which it holds itself")
    until_it_fits(page)
    keep_picture(page, "health", width)

    # And links: to all of a kind, to the lock, to the row
    group(page, "owner gone").get_by_role("link", name="Show all").click()
    expect(page.get_by_text("30 locks").first).to_be_visible()
    page.go_back()
    page.get_by_role("link", name="video:0", exact=True).click()
    expect(page.get_by_role("button", name="Clear this lock…")).to_be_visible()
    page.go_back()
    page.get_by_role("link", name=f"app.Job {jobs[0].pk}", exact=True).click()
    expect(page.get_by_role("heading", name="Change job")).to_be_visible()
    assert errors == []
    assert locks.clear("report")
    thread.result()


def test_a_lock_is_cleared_from_it(open_as: Open, errors: list[str]) -> None:
    page = open_as(*MAY)
    leave_behind("video:1", "video:2", "video:3")
    page.goto(HEALTH)

    # One, by its button and the page that says what it means
    finding(page, "video:2").get_by_role("button", name="Clear video:2…").click()
    expect(page.get_by_text("Its process is gone: no two runs overlap.").first).to_be_visible()
    page.get_by_role("link", name="No, take me back").click()
    expect(finding(page, "video:2")).to_be_visible()
    assert locks.is_locked("video:2")
    finding(page, "video:2").get_by_role("button", name="Clear video:2…").click()
    page.get_by_role("button", name="Clear this lock").click()
    expect(page.get_by_text("“video:2” was cleared.")).to_be_visible()
    expect(finding(page, "video:2")).to_have_count(0)
    expect(finding(page, "video:1")).to_be_visible()
    assert [info.name for info in locks.list()] == ["video:1", "video:3"]

    # And the others together
    page.get_by_role("button", name="Clear up to 2 whose owner is gone…").click()
    page.get_by_role("button", name="Clear 2 locks").click()
    expect(page.get_by_text("Nothing is wrong.")).to_be_visible()
    assert locks.count() == 0
    assert errors == []


def test_lost_rows_are_sent_again_from_it(open_as: Open, room: Mailroom, errors: list[str]) -> None:
    runs: list[int] = []
    page = open_as(*MAY)
    room.task(lambda self, job: runs.append(job), guard=fenced())
    first, *others = [Job.objects.create(status="processing").pk for _ in range(3)]
    page.goto(HEALTH)

    # One by its button: a double click sends it once, and once it has run it is gone
    button = page.get_by_role("button", name=f"Send app.Job {first} again")
    button.dblclick()
    expect(page.get_by_text(f"“app.Job {first}” was sent").first).to_be_visible()
    until(lambda: len(room.waiting()) == 1)
    room.work_off()
    assert runs == [first]
    page.goto(HEALTH)
    expect(finding(page, f"app.Job {first}")).to_have_count(0)

    # And the others together
    page.get_by_role("button", name="Send these 2 again").click()
    expect(page.get_by_text("were sent again.")).to_be_visible()
    room.work_off()
    assert runs == [first, *others]
    page.goto(HEALTH)
    expect(page.get_by_text("Nothing is wrong.")).to_be_visible()
    assert errors == []
