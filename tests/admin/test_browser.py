"""The admin's pages in a real Chromium, under a strict Content-Security-Policy.

The pages' own clock is the test's: it is turned on where seconds have to pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.models import Session
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.test.utils import override_settings
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer

from django_tasklock import Event, locks
from django_tasklock.stores import stores
from tests import needs
from tests.admin.conftest import ADD, EVENTS, HEALTH, LIST, taken, url_of
from tests.conftest import UseRedis
from tests.inside import Owner
from tests.proxy import CutProxy
from tests.steps import orphan
from tests.waiting import until

pytestmark = pytest.mark.slow

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
TIMEOUT_MS = 60_000
"""The machine may be busy; what is expected comes at once where it is not."""
TOO_WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
PHONE: Any = {"width": 390, "height": 844}
STALE = re.compile(r"\btasklock-stale\b")
Open = Callable[..., Page]


def pages() -> dict[str, str]:
    """Every page, of a lock that is held."""
    return {
        "list": LIST,
        "narrowed list": f"{LIST}?state=gone&task=none",
        "lock": url_of("change", "default:video:1"),
        "free lock": url_of("change", "default:video:free"),
        "question": url_of("delete", "default:video:1"),
        "hold": ADD,
        "events": EVENTS,
        "health": HEALTH,
    }


def strict_policy(get_response: Callable[[HttpRequest], HttpResponse]) -> Any:
    """A middleware that allows what comes from the site itself, and nothing inline."""

    def answer(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response

    return answer


@pytest.fixture(scope="module")
def live_server(django_db_setup: None) -> Iterator[LiveServer]:
    """The site, under the strict policy: a server reads the middleware when it starts."""
    with override_settings(MIDDLEWARE=[f"{__name__}.strict_policy", *settings.MIDDLEWARE]):
        server = LiveServer("localhost")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        # Playwright's loop runs in this thread; the tests' own queries do not run in it.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(
            executable_path=needs.chromium(),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        expect.set_options(timeout=TIMEOUT_MS)
        yield browser
        browser.close()


@pytest.fixture
def errors() -> list[str]:
    """What the browser's console complained about, violations of the policy among it."""
    return []


@pytest.fixture
def open_page(
    browser: Browser, live_server: LiveServer, use_redis: UseRedis, errors: list[str]
) -> Iterator[Open]:
    """``open_page(path, **context)``: a page, logged in as one who may see and clear locks."""
    use_redis()
    contexts: list[BrowserContext] = []

    def open_one(path: str = LIST, **options: Any) -> Page:
        user = User.objects.create_user(f"user-{len(contexts)}", is_staff=True)
        may = ("view_lock", "delete_lock")
        user.user_permissions.set(Permission.objects.filter(codename__in=may))
        client = Client()
        client.force_login(user)
        url = live_server.url
        context = browser.new_context(base_url=url, **options)
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        cookie = client.cookies[settings.SESSION_COOKIE_NAME]
        context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": url}])
        context.route(lambda to: not to.startswith(url), lambda route: route.abort())
        context.clock.install()
        page = context.new_page()
        page.on(
            "console",
            lambda said: errors.append(said.text) if said.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path)
        return page

    yield open_one
    for context in contexts:
        context.close()


def something_happened() -> None:
    """An event with all that one can have."""
    now, skipped = datetime.now(timezone.utc), Owner(host="worker-2", pid=77, task="videos.process")
    by = Owner(host="worker-1", pid=9, task="videos.process", task_id="id-9")
    event = Event("skipped", "video:1", "default", now, skipped, by, reason="cooling_down")
    stores["default"].record([event])


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


def refresh(page: Page) -> None:
    """Let the pause between two looks pass, and wait for the answer."""
    with page.expect_response(lambda response: response.request.resource_type == "fetch"):
        page.clock.run_for(5_000)


def names(page: Page) -> Locator:
    return page.locator("#result_list th.field-name")


def test_the_list_counts_down_and_follows_its_store(open_page: Open, errors: list[str]) -> None:
    ending, _ = taken("video:1", 900), taken("video:2", 900)
    page = open_page()
    page.mouse.move(0, 0)
    bar = row(page, "video:2").locator("progress")
    assert float(bar.get_attribute("value") or 0) > 890
    page.clock.run_for(4_000)
    expect(row(page, "video:2").locator(".tasklock-ttl")).to_have_text(re.compile(r"^14m5\ds$"))
    assert bar.evaluate("bar => bar.value") < 897

    # When nobody is busy with the table, I expect it to follow what is held
    ending.release()
    taken("video:3", 900)
    taken("video:4", 900)
    refresh(page)
    expect(names(page)).to_have_text(["video:2", "video:3", "video:4"])
    expect(page.locator(".tasklock-tabs [aria-current] .tasklock-count")).to_have_text("3")
    expect(page.get_by_text("3 locks", exact=True)).to_be_visible()

    # And a box that came by itself to count as the others do
    row(page, "video:3").get_by_role("checkbox").check()
    expect(page.locator(".action-counter")).to_have_text("1 of 3 selected")
    assert errors == []


def test_nothing_moves_under_a_ticked_box(open_page: Open, errors: list[str]) -> None:
    ending, _ = taken("video:1", 900), taken("video:2", 900, task="old")
    page = open_page()
    row(page, "video:2").get_by_role("checkbox").check()
    ending.release()
    taken("video:0", 900)

    refresh(page)

    expect(row(page, "video:1")).to_have_class(re.compile("tasklock-vanished"))
    expect(names(page)).to_have_text(["video:1", "video:2"])
    expect(row(page, "video:2").get_by_role("checkbox")).to_be_checked()
    # And all of it to be made up for when the reader is done.
    row(page, "video:2").get_by_role("checkbox").uncheck()
    page.evaluate("document.activeElement.blur()")
    page.mouse.move(0, 0)
    refresh(page)
    expect(names(page)).to_have_text(["video:2", "video:0"])
    assert errors == []


def test_an_open_choice_of_tasks_stays_open(open_page: Open) -> None:
    taken("video:1", 900, task="videos.transcode")
    page = open_page()
    page.mouse.move(0, 0)
    choice = page.locator(".tasklock-states details")
    choice.locator("summary").click()
    taken("video:2", 900)
    refresh(page)
    expect(choice.get_by_role("link", name="videos.transcode")).to_be_visible()
    expect(names(page)).to_have_text(["video:1"])
    # And the list to follow its store once it is closed
    choice.locator("summary").click()
    refresh(page)
    expect(names(page)).to_have_text(["video:1", "video:2"])


def test_what_is_not_known_any_more_is_grey(
    open_page: Open, use_redis: UseRedis, cut_proxy: CutProxy
) -> None:
    # Given an open list, and a store that is cut off
    page = open_page("/admin/login/")
    use_redis(cut_proxy.url)
    taken("video:1")
    page.goto(LIST)
    page.mouse.move(0, 0)
    shown = page.locator("body")
    expect(shown).not_to_have_class(STALE)
    with cut_proxy.away():
        # I expect the row to stay, greyed, with the time that it is from, and no false count
        refresh(page)
        expect(shown).to_have_class(STALE)
        expect(row(page, "video:1")).to_be_visible()
        expect(page.locator("#tasklock-live")).to_have_text(
            re.compile(r"as of \d+:\d\d.*no answer")
        )
        expect(page.locator(".tasklock-tabs .tasklock-count")).to_be_hidden()
        expect(page.get_by_text("1 lock", exact=True)).to_be_hidden()
        notice = page.locator("#tasklock-live").bounding_box()
        search = page.locator("#searchbar").bounding_box()
        assert notice is not None and search is not None  # noqa: PT018
        assert notice["y"] < search["y"]
        left = row(page, "video:1").locator(".tasklock-ttl").text_content()
        page.clock.run_for(3_000)
        expect(row(page, "video:1").locator(".tasklock-ttl")).to_have_text(left or "")
        # And a page that is opened now to say so in the same place
        page.reload()
        expect(page.locator("#tasklock-notice")).to_contain_text("is unavailable")
    # And all of it to end with the outage
    refresh(page)
    expect(page.locator("#tasklock-notice")).not_to_contain_text("is unavailable")
    expect(shown).not_to_have_class(STALE)
    expect(page.locator("#tasklock-live")).to_be_hidden()

    # When the session ends, I expect that to be said, with the way back
    Session.objects.all().delete()
    page.clock.run_for(5_000)
    expect(page.locator("#tasklock-live")).to_contain_text("Your session has ended.")
    page.get_by_role("link", name="Log in again").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()


def test_a_clear_ends_the_lease_that_was_seen_and_no_other(
    open_page: Open, errors: list[str]
) -> None:
    # Given two ticked locks, one of which changes hands before the question is answered
    taken("video:1")
    changing = taken("video:2")
    page = open_page()
    for name in ("video:1", "video:2"):
        row(page, name).get_by_role("checkbox").check()
    page.get_by_role("combobox", name="Action").select_option("Clear selected locks")
    page.locator("button[name=index]").click()
    expect(page.get_by_role("heading", name="Clear these locks?")).to_be_visible()
    changing.release()
    successor = taken("video:2")

    page.get_by_role("button", name="Clear 2 locks").click()

    expect(page.get_by_text("Cleared: “video:1”.")).to_be_visible()
    expect(page.get_by_text("changed hands: “video:2”.")).to_be_visible()
    assert not locks.is_locked("video:1")
    assert successor.extend()
    assert errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, PHONE["width"]])
def test_axe_finds_nothing_wrong_on_any_page(open_page: Open, scheme: Any, width: int) -> None:
    taken("video:1", task="videos.transcode", task_id="id-1")
    orphan("gone:1")
    something_happened()
    size: Any = {"width": width, "height": PHONE["height"]}
    page = open_page(color_scheme=scheme, viewport=size)
    found: list[str] = []
    for name, path in pages().items():
        page.goto(path)
        page.evaluate(AXE_SCRIPT)
        said = page.evaluate("axe.run({resultTypes: ['violations']})")
        found += [
            f"{name}: {rule['id']}: {node['target']} {node['failureSummary']}"
            for rule in said["violations"]
            for node in rule["nodes"]
        ]
    assert not found, "\n".join(found)


def test_the_keyboard_reaches_the_buttons(open_page: Open) -> None:
    taken("video:1")
    page = open_page()
    page.goto(pages()["lock"])
    page.get_by_role("link", name="History").focus()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Clear…")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Clear this lock?")).to_be_visible()


def test_every_page_fits_a_phone(open_page: Open, errors: list[str]) -> None:
    taken("video:1", task="shop.tasks.send_nightly_report", task_id="0a1b2c3d-4e5f-6789-93f5")
    orphan("gone:1")
    something_happened()
    page = open_page(viewport=PHONE)
    for name, path in pages().items():
        page.goto(path)
        # A style sheet may come after the text.
        until(lambda: not page.evaluate(TOO_WIDE), f"that the page {name} fits")
        for button in page.locator("#content").locator("button, [type=submit], .button").all():
            box = button.bounding_box()
            assert box is None or (box["x"] >= 0 and box["x"] + box["width"] <= 391), name
    assert errors == []


def test_a_phone_shows_who_by_whom_and_why(open_page: Open) -> None:
    something_happened()
    page = open_page(EVENTS, viewport=PHONE)
    for label, words in {
        "who": "worker-2:77",
        "by": "worker-1:9",
        "reason": "cooling_down",
    }.items():
        cell = page.locator(f"td[data-tasklock-label={label}]").filter(has_text=words)
        expect(cell).to_be_visible()
        box = cell.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= PHONE["width"]
        said = cell.evaluate("cell => getComputedStyle(cell, '::before').content")
        assert label in said, "its label is seen, too"


def test_the_policy_is_in_force(open_page: Open, errors: list[str]) -> None:
    """Without this, the other tests' lists of errors might be empty for no good reason."""
    page = open_page()
    assert errors == []
    page.evaluate(
        "{const s = document.createElement('script'); s.text = 'window.ran = 1';"
        " document.body.append(s)}"
    )
    assert page.evaluate("window.ran") is None
    assert any("Content Security Policy" in error for error in errors)
