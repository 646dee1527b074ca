"""The pages in a real Chromium say how old they are, and nothing that is not known."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.sessions.models import Session
from playwright.sync_api import Page, expect

from django_tasklock import locks
from tests.acceptance.test_admin_browser import (
    LIST,
    Open,
    acquire,
    browser,
    errors,
    live_server,
    open_as,
    row,
    wait_for_a_look,
)
from tests.conftest import UseCaches, UseRedis
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.store_cases import redis_cache

__all__ = ["browser", "errors", "live_server", "open_as"]

pytestmark = pytest.mark.slow

STALE = re.compile(r"\btasklock-stale\b")
AS_OF = re.compile(r"^\s*As of \d\d:\d\d:\d\d\s+\([\dms.]+ ago\)\s*$")


def as_of(page: Page) -> Any:
    return page.locator("#tasklock-as-of")


def words(page: Page) -> Any:
    return page.locator("#tasklock-live span")


def test_paused_list_says_of_when_it_is(open_as: Open) -> None:
    acquire("video:1")
    page = open_as("view_lock")
    wait_for_a_look(page)
    expect(as_of(page)).to_be_hidden()
    page.get_by_role("button", name="Pause").click()
    expect(as_of(page)).to_be_visible()
    expect(as_of(page)).to_have_text(AS_OF)
    first = as_of(page).inner_text()
    # The time stays, and what has passed is counted
    expect(as_of(page)).not_to_have_text(first)
    assert as_of(page).inner_text().partition(" (")[0] == first.partition(" (")[0]


@pytest.mark.parametrize("view", ["change", "delete"])
def test_detail_and_confirmation_say_of_when_they_are(open_as: Open, view: str) -> None:
    acquire("video:1")
    page = open_as("view_lock", "delete_lock", path=f"{LIST}default_3Avideo_3A1/{view}/")
    expect(as_of(page)).to_have_text(AS_OF)
    first = as_of(page).inner_text()
    expect(as_of(page)).not_to_have_text(first)
    assert as_of(page).inner_text().partition(" (")[0] == first.partition(" (")[0]


def test_confirmation_says_what_a_clear_means(open_as: Open, errors: list[str]) -> None:
    acquire("video:1")
    acquire("video:2", renew=True)
    page = open_as("view_lock", "delete_lock", path=f"{LIST}default_3Avideo_3A2/delete/")
    expect(page.get_by_text("Not safe to clear: 1 of 1 lock.")).to_be_visible()
    meaning = page.locator("td.field-meaning")
    expect(meaning).to_contain_text("Its process is alive: two runs may overlap.")
    expect(meaning).to_contain_text("It notices within 3m20s, at its next renewal.")
    expect(meaning).to_contain_text("Nobody waits.")
    red = "e => getComputedStyle(e).color"
    mark = meaning.locator(".tasklock-unsafe")
    assert mark.evaluate(red) != meaning.evaluate(red)
    assert errors == []


def test_list_keeps_its_rows_grey_while_the_store_is_silent(
    open_as: Open, use_redis: UseRedis, cut_proxy: CutProxy
) -> None:
    # Given an open list, and a store that is cut off
    use_redis(cut_proxy.url)
    acquire("video:1")
    page = open_as("view_lock")
    wait_for_a_look(page)
    expect(row(page, "video:1")).not_to_have_class(STALE)
    with cut_proxy.away():
        # I expect the row to stay, greyed, with the time that it is from, and no false count
        expect(row(page, "video:1")).to_have_class(STALE)
        expect(words(page)).to_have_text(
            "A store does not answer: its rows are grey, as they were."
        )
        expect(as_of(page)).to_have_text(AS_OF)
        expect(page.get_by_text("How many locks there are is not known.")).to_be_visible()
        expect(page.get_by_text("0 locks")).to_have_count(0)
        # Nothing is counted in it: nobody knows whether the lease goes on
        ttl = row(page, "video:1").locator(".tasklock-ttl").inner_text()
        wait_for_a_look(page)
        assert row(page, "video:1").locator(".tasklock-ttl").inner_text() == ttl
    # And all of it to end with the outage
    expect(row(page, "video:1")).not_to_have_class(STALE)
    expect(page.get_by_text("1 lock", exact=True)).to_be_visible()
    expect(as_of(page)).to_be_hidden()


def test_first_page_of_a_silent_store_counts_nothing(
    open_as: Open, use_redis: UseRedis, own_redis_server: RedisServer
) -> None:
    use_redis(own_redis_server.url)
    own_redis_server.kill()
    for path in (LIST, f"{LIST}?q=video", f"{LIST}?p=2"):
        page = open_as("view_lock", path=path)
        expect(page.get_by_text("How many locks there are is not known.")).to_be_visible()
        expect(page.get_by_text("0 locks")).to_have_count(0)
        expect(page.get_by_role("alert")).to_contain_text("is unavailable")


def test_rows_of_a_store_that_answers_go_on_beside_a_silent_one(
    open_as: Open, use_caches: UseCaches, redis_server: RedisServer, cut_proxy: CutProxy
) -> None:
    use_caches(
        {"default": redis_cache(redis_server.url), "far": redis_cache(cut_proxy.url)},
        {"default": {}, "far": {"CACHE": "far", "KEY_PREFIX": "far"}},
    )
    acquire("near:1")
    locks.using("far").acquire("far:1", ttl=600)
    page = open_as("view_lock")
    expect(row(page, "far:1")).to_be_visible()
    with cut_proxy.away():
        expect(row(page, "far:1")).to_have_class(STALE)
        acquire("near:2")
        expect(row(page, "near:2")).to_be_visible()
        expect(row(page, "near:2")).not_to_have_class(STALE)
        expect(row(page, "far:1")).to_be_visible()
        expect(page.get_by_text("Locks that are not known are not counted.")).to_be_visible()


@pytest.mark.parametrize("how", ["cut", "paused"])
def test_list_keeps_its_rows_grey_while_the_site_is_silent(
    open_as: Open, live_server: Any, how: str
) -> None:
    acquire("video:1")
    site = urlsplit(live_server.url)
    with CutProxy((site.hostname or "localhost", site.port or 80)) as proxy:
        page = open_as("view_lock", through=proxy.port)
        wait_for_a_look(page)
        if how == "cut":
            proxy.refuse()
            proxy.cut()
        else:
            proxy.pause()
        expect(words(page)).to_have_text("No answer from the site; trying again.")
        expect(row(page, "video:1")).to_have_class(STALE)
        expect(as_of(page)).to_have_text(AS_OF)
        if how == "cut":
            proxy.accept()
            expect(row(page, "video:1")).not_to_have_class(STALE)
            expect(words(page)).to_have_text("Kept up to date.")
        page.context.close()


def test_session_that_ended_is_said_with_a_link_to_log_in(open_as: Open) -> None:
    acquire("video:1")
    page = open_as("view_lock", path=f"{LIST}?q=video")
    wait_for_a_look(page)
    link = page.get_by_role("link", name="Log in again")
    expect(link).to_be_hidden()
    Session.objects.all().delete()
    expect(words(page)).to_have_text("Your session has ended.")
    expect(row(page, "video:1")).to_have_class(STALE)
    expect(as_of(page)).to_have_text(AS_OF)
    link.click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    assert page.url.endswith("/admin/login/?next=%2Fadmin%2Fdjango_tasklock%2Flock%2F%3Fq%3Dvideo")
