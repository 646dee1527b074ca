"""In Chromium: a lock's history, the strip above the list, copying, and the choice of the pause."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone

import pytest
from django.contrib.admin.utils import quote
from django.test.utils import override_settings
from playwright.sync_api import Page, expect

from django_tasklock import Event, locks
from django_tasklock._values.event import Kind
from django_tasklock._values.owner import Owner
from tests.acceptance.test_admin_browser import (
    LIST,
    PICTURES,
    Open,
    acquire,
    asks,
    browser,
    errors,
    live_server,
    open_as,
    row,
    wait_for_a_look,
)
from tests.waiting import until

__all__ = ["browser", "errors", "live_server", "open_as"]
pytestmark = pytest.mark.slow
TOO_WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
WORKER = Owner(host="worker-3", pid=4711, task="videos.tasks.process", task_id="7d0a61-93f5")
HOLDER = Owner(host="worker-1", pid=1105, task="videos.tasks.process", task_id="6b9f6ff9-6c6b")
SIZES = pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
CHANGE = f"{LIST}default_3Avideo_3A481/change/"


def until_it_fits(page: Page, what: str = "the page") -> None:
    """Wait until nothing is wider than the window: a style sheet may come after the text."""
    until(lambda: not page.evaluate(TOO_WIDE), f"that {what} fits")


def happened(name: str, *kinds: Kind, minutes_ago: float = 0.0, seconds: float = 0.0) -> None:
    at = datetime.now(timezone.utc) - timedelta(minutes=minutes_ago)
    locks.store.record(
        [
            Event(
                kind, name, "default", at, WORKER if kind in ("refused", "waited") else HOLDER,
                holder=HOLDER if kind == "refused" else None, seconds=seconds,
                by="alice" if kind == "cleared" else None,
            )
            for kind in kinds
        ]
    )  # fmt: skip


def an_hour() -> None:
    """An hour as a site has it, the oldest event first."""
    for minute in range(59, 0, -1):
        refusals: list[Kind] = ["refused"] * (minute % 7)
        happened("video:481", *refusals, minutes_ago=minute, seconds=minute / 9)
        if minute % 9 == 0:
            happened("report:2026-11-20", "waited", minutes_ago=minute, seconds=75)
    happened("report:2026-11-20", "lost", minutes_ago=0.5)
    happened("video:481", "cleared", minutes_ago=0.4)


def keep_picture(page: Page, name: str, width: int) -> None:
    """In the docs, where TASKLOCK_PICTURES is set."""
    if os.environ.get("TASKLOCK_PICTURES") and width == 1280:
        page.screenshot(path=PICTURES / f"admin-{name}.png")


# ------------------------------------------------------------------------------ the history


@SIZES
def test_a_lock_that_is_gone_still_shows_what_happened(
    open_as: Open, errors: list[str], width: int, height: int
) -> None:
    # Given a lock that was wanted, and a list on which it is drawn
    an_hour()
    lease = acquire("video:481", task="videos.tasks.process")
    page = open_as("view_lock", viewport={"width": width, "height": height})
    page.get_by_role("link", name="video:481", exact=True).click()
    events = page.get_by_role("region", name="What happened").get_by_role("row")
    expect(events).to_have_count(21)
    expect(events.nth(1)).to_contain_text("cleared")
    expect(events.nth(1)).to_contain_text("alice")
    until_it_fits(page)

    # When it is gone and somebody opens its address
    lease.release()
    page.goto(CHANGE)

    # I expect its history all the same
    expect(page.get_by_role("heading", name="“video:481” is not locked")).to_be_visible()
    expect(events).to_have_count(21)
    until_it_fits(page)
    keep_picture(page, "gone", width)
    assert errors == []


@SIZES
def test_contention_is_found_from_the_list_and_leads_to_the_lock(
    open_as: Open, errors: list[str], width: int, height: int
) -> None:
    an_hour()
    page = open_as("view_lock", viewport={"width": width, "height": height})
    page.get_by_role("link", name="Contention").click()
    rows = page.locator("#contention_list tbody tr")
    expect(rows.locator("th")).to_have_text(["video:481", "report:2026-11-20"])
    expect(rows.first).to_contain_text("worker-1:1105")
    until_it_fits(page)
    keep_picture(page, "contention", width)
    page.get_by_role("link", name="video:481").click()
    expect(page.get_by_role("heading", name="What happened")).to_be_visible()
    page.goto(f"{LIST}health/")
    page.get_by_role("link", name="Which locks were wanted most").click()
    expect(rows).to_have_count(2)
    assert errors == []


# ------------------------------------------------------------------------------ the strip


@SIZES
def test_the_strip_says_what_is_and_what_was(
    open_as: Open, errors: list[str], width: int, height: int
) -> None:
    # Given an hour of events, some locks, and an open list
    an_hour()
    for name, ttl in (("video:481", 41), ("video:482", 58), ("invoice:77", 240)):
        acquire(name, ttl, task="videos.tasks.process", task_id=f"7d0a61-{ttl}-93f5")
    assert locks.hold("report:2026-11-20", ttl=3000, by="alice", reason="migration")
    page = open_as("view_lock", "delete_lock", viewport={"width": width, "height": height})
    strip = page.locator("#tasklock-summary")
    first = strip.locator("dl > div").first
    expect(first).to_contain_text("4")
    expect(strip.locator(".tasklock-count-operators dd")).to_have_text("1")
    chart = strip.get_by_role("img")
    assert "Events by the minute: " in (chart.get_attribute("aria-label") or "")
    assert chart.locator("rect").count() > 40
    box = chart.bounding_box()
    assert box
    assert box["width"] > 100
    until_it_fits(page)

    # When another lock begins and one more caller is refused, I expect both in it by themselves
    # and the focus to stay on its link
    link = strip.get_by_role("link")
    link.focus()
    acquire("video:483", 500)
    happened("video:481", "refused")
    expect(first).to_contain_text("5")
    expect(link).to_have_text("184 events")
    expect(link).to_be_focused()
    assert errors == []


# ------------------------------------------------------------------------------ copying


@SIZES
def test_what_is_copied_by_keyboard_is_said(
    open_as: Open, errors: list[str], width: int, height: int
) -> None:
    # Given the page of a lock whose name a shell must not read as it is
    lease = acquire("video:481$(x)")
    page = open_as(
        "view_lock",
        path=f"{LIST}{quote('default:video:481$(x)')}/change/",
        permissions=["clipboard-read", "clipboard-write"],
        viewport={"width": width, "height": height},
    )
    buttons = page.get_by_role("button", name="Copy")
    expect(buttons).to_have_count(4)
    for at, expected in enumerate(
        (
            "video:481$(x)", locks.get("video:481$(x)").key,  # type: ignore[union-attr]
            "manage.py locks show -- 'video:481$(x)'",
            "manage.py locks clear --dry-run -- 'video:481$(x)'",
        )
    ):  # fmt: skip
        # When its button is pressed by keyboard
        page.evaluate("navigator.clipboard.writeText('nothing')")
        button = buttons.nth(at)
        button.focus()
        page.keyboard.press("Enter")
        # I expect it to be read out, the focus to stay, and the text to be on the clipboard
        expect(page.get_by_role("status").filter(has_text="Copied.")).to_be_attached()
        page.wait_for_function(
            "text => navigator.clipboard.readText().then(found => found === text)", arg=expected
        )
        expect(button).to_be_focused()
    until_it_fits(page)
    assert lease.token not in page.content()
    assert errors == []


def test_a_browser_that_does_not_copy_is_said_as_well(open_as: Open) -> None:
    acquire("video:481")
    page = open_as("view_lock", path=CHANGE)
    page.evaluate("() => {navigator.clipboard.writeText = () => Promise.reject(new Error('no'))}")
    page.get_by_role("button", name="Copy: video:481").click()
    expect(page.get_by_role("status").filter(has_text="did not copy")).to_be_attached()


def test_without_javascript_there_is_nothing_to_press_in_vain(open_as: Open) -> None:
    acquire("video:481")
    page = open_as("view_lock", path=CHANGE, java_script_enabled=False)
    expect(page.get_by_text("video:481").first).to_be_visible()
    expect(page.get_by_role("button", name="Copy")).to_have_count(0)


# ------------------------------------------------------------------------------ the pause


def test_the_chosen_pause_is_kept_in_this_browser(open_as: Open, errors: list[str]) -> None:
    # Given an open list, which looks every 4 seconds unless told otherwise
    acquire("video:1")
    page = open_as("view_lock")
    choice = page.get_by_label("every")
    words = page.locator("#tasklock-live span")
    expect(choice).to_have_value("4")
    assert choice.locator("option").all_inner_texts() == ["2 s", "4 s", "10 s", "30 s", "never"]

    # When another pause is chosen, I expect it to count after the page was opened again
    choice.select_option("2")
    page.reload()
    expect(choice).to_have_value("2")
    wait_for_a_look(page)
    choice.select_option("never")
    expect(words).to_have_text("Paused.")
    page.reload()
    expect(choice).to_have_value("off")
    expect(words).to_have_text("Paused.")
    asked = asks(page)
    page.wait_for_timeout(6_000)
    assert asked == []

    # And to start again as it is when nothing was chosen
    with page.expect_response(lambda response: "/live/" in response.url):
        page.get_by_role("button", name="Resume").click()
    expect(choice).to_have_value("4")
    expect(words).to_have_text("Kept up to date.")
    page.evaluate("localStorage.setItem('tasklock-every', 'nonsense')")
    page.reload()
    expect(choice).to_have_value("4")
    assert errors == []


# ------------------------------------------------------------------------------ times and tasks


def test_times_and_task_links_stay_while_the_list_updates_itself(
    open_as: Open, errors: list[str]
) -> None:
    acquire("video:1", 600, task="videos.process", task_id="a/b c")
    with override_settings(TASKLOCK_TASK_URL="https://flower.example.com/task/{task_id}"):
        page = open_as("view_lock")
        for _ in range(2):
            link = row(page, "video:1").get_by_role("link", name="a/b c")
            expect(link).to_have_attribute("href", "https://flower.example.com/task/a%2Fb%20c")
            for cell, says in (
                (".tasklock-age", "acquired at 20"),
                (".tasklock-ttl", "expires at"),
            ):
                time = row(page, "video:1").locator(cell)
                assert says in (time.get_attribute("title") or "")
                at = datetime.fromisoformat(time.get_attribute("datetime") or "")
                assert abs(at - datetime.now(timezone.utc)) < timedelta(minutes=20)
            wait_for_a_look(page)
    assert errors == []
