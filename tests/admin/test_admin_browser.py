"""The admin page in a real Chromium, under a strict Content-Security-Policy.

The pages' own clock is the test's: it is turned on where a minute has to pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.models import Session
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.test.utils import override_settings
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer

from django_tasklock import Lease, locks
from tests.conftest import UseRedis
from tests.proxy import CutProxy
from tests.waiting import until

pytestmark = pytest.mark.slow

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
TIMEOUT_MS = 60_000
"""The machine may be busy; what is expected comes at once where it is not."""
LIST = "/admin/django_tasklock/lock/"
LOCK = f"{LIST}default_3Avideo_3A1/"
PAGES = {
    "list": LIST,
    "lock": f"{LOCK}change/",
    "question": f"{LOCK}delete/",
    "health": f"{LIST}health/",
    "hold": f"{LIST}hold/",
}
TOO_WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
OURS = "{include: ['#content'], exclude: ['#searchbar']}"
"""for axe; the label of the search is Django's own"""
Open = Callable[..., Page]


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
def browser(chromium_path: Path) -> Iterator[Browser]:
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        # Playwright's loop runs in this thread; the tests' own queries do not run in it.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(
            executable_path=chromium_path,
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
        if options.get("java_script_enabled", True):
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


def acquire(name: str, ttl: float = 600, **who: Any) -> Lease:
    lease = locks.try_acquire(name, ttl=ttl, **who)
    assert isinstance(lease, Lease)
    return lease


def row(page: Page, name: str) -> Any:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


def let_pass(page: Page, seconds: int) -> None:
    """On the page's clock."""
    page.clock.run_for(seconds * 1000)


def refresh(page: Page) -> None:
    """Let the pause between two looks pass, and wait for the answer."""
    with page.expect_response(lambda response: "/live/" in response.url):
        let_pass(page, 5)


def test_ttl_counts_down_and_its_end_is_said(open_page: Open, errors: list[str]) -> None:
    # Given a lock on an open page that does not ask for news
    acquire("video:1", ttl=900)
    page = open_page()
    ttl, age = row(page, "video:1").locator(".tasklock-ttl, .tasklock-age").all()
    page.get_by_role("button", name="Pause").click()

    # When five minutes pass, I expect the TTL to fall and the age to rise
    let_pass(page, 300)
    expect(ttl).to_have_text(re.compile("^[89]m"))
    expect(age).to_have_text(re.compile("^5m"))

    # And the end to be said when it comes, but not as if it were known
    let_pass(page, 600)
    expect(ttl).to_have_text("expired or extended")
    expect(page.locator("#tasklock-as-of")).to_have_text(
        re.compile(r"As of \S+\s+\(15m\d\ds ago\)")
    )
    assert errors == []


def test_list_refreshes_itself(open_page: Open, errors: list[str]) -> None:
    # Given an open list, where somebody has reached a lock's link with the keyboard
    ending = acquire("video:1", 600)
    acquire("video:2", 700)
    page = open_page()
    link = row(page, "video:2").get_by_role("link")
    link.focus()

    # When one lock ends, and another begins
    ending.release()
    acquire("video:3", 500)
    refresh(page)

    # I expect the list to say so by itself, in its order, and the link to have kept the focus
    expect(page.locator("#result_list th.field-name")).to_have_text(["video:3", "video:2"])
    expect(link).to_be_focused()
    expect(page.locator("#changelist-form .paginator")).to_contain_text("2 locks")
    # And a box that came by itself to count as the others do
    row(page, "video:3").get_by_role("checkbox").check()
    expect(page.locator(".action-counter")).to_have_text("1 of 2 selected")
    assert errors == []


def test_it_does_not_change_under_ticked_boxes_nor_in_a_hidden_tab(open_page: Open) -> None:
    acquire("video:1")
    page = open_page()
    refresh(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    box = row(page, "video:1").get_by_role("checkbox")

    box.check()
    expect(page.locator("#tasklock-live span")).to_have_text("Paused while locks are ticked.")
    let_pass(page, 60)
    assert asked == []
    box.uncheck()
    refresh(page)
    assert asked

    # A headless browser shows every tab: what a page learns of being hidden is said to it here.
    hide = (
        "hidden => {Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange'))}"
    )
    page.evaluate(hide, True)
    asked.clear()
    let_pass(page, 60)
    assert asked == []
    with page.expect_response(lambda response: "/live/" in response.url):
        page.evaluate(hide, False)


def test_what_is_not_known_any_more_is_grey(
    open_page: Open, use_redis: UseRedis, cut_proxy: CutProxy
) -> None:
    # Given an open list, and a store that is cut off
    page = open_page("/admin/login/")
    use_redis(cut_proxy.url)
    acquire("video:1")
    page.goto(LIST)
    stale = re.compile(r"\btasklock-stale\b")
    expect(row(page, "video:1")).not_to_have_class(stale)
    with cut_proxy.away():
        # I expect the row to stay, greyed, with the time that it is from, and no false count
        refresh(page)
        expect(row(page, "video:1")).to_have_class(stale)
        expect(page.get_by_role("alert")).to_contain_text("The store “default” is unavailable")
        expect(page.locator("#tasklock-as-of")).to_contain_text("As of ")
        expect(page.get_by_text("0 locks")).to_have_count(0)
    # And all of it to end with the outage
    refresh(page)
    expect(row(page, "video:1")).not_to_have_class(stale)

    # When the session ends, I expect that to be said, with the way back
    Session.objects.all().delete()
    let_pass(page, 5)
    expect(page.locator("#tasklock-live span")).to_have_text("Your session has ended.")
    expect(row(page, "video:1")).to_have_class(stale)
    page.get_by_role("link", name="Log in again").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()


def test_a_clear_ends_the_lease_that_was_seen_and_no_other(
    open_page: Open, errors: list[str]
) -> None:
    # Given two ticked locks, one of which changes hands before the question is answered
    acquire("video:1")
    changing = acquire("video:2")
    page = open_page()
    for name in ("video:1", "video:2"):
        row(page, name).get_by_role("checkbox").check()
    page.get_by_role("combobox", name="Action").select_option("Clear selected locks")
    page.get_by_role("button", name="Go").click()
    expect(page.get_by_role("heading", name="Clear these locks?")).to_be_visible()
    changing.release()
    successor = acquire("video:2")

    page.get_by_role("button", name="Clear 2 locks").click()

    expect(page.get_by_text("“video:1” was cleared.")).to_be_visible()
    expect(page.get_by_text("“video:2” changed hands")).to_be_visible()
    assert not locks.is_locked("video:1")
    assert successor.extend()
    assert errors == []


def test_a_lock_is_cleared_without_javascript(open_page: Open) -> None:
    acquire("video:1")
    page = open_page(java_script_enabled=False)
    expect(row(page, "video:1").locator(".tasklock-ttl")).to_contain_text("s")
    row(page, "video:1").get_by_role("link", name="video:1").click()
    expect(page.get_by_role("button", name="Copy")).to_have_count(0)
    page.get_by_role("button", name="Clear this lock…").click()
    page.get_by_role("button", name="Clear this lock").click()
    expect(page.get_by_text("“video:1” was cleared.")).to_be_visible()
    assert not locks.is_locked("video:1")


def test_a_key_is_copied_by_keyboard_and_said(open_page: Open, errors: list[str]) -> None:
    lease = acquire("video:1")
    page = open_page(PAGES["lock"], permissions=["clipboard-read", "clipboard-write"])
    button = page.get_by_role("button", name="Copy: manage.py locks show -- video:1")
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_function(
        "navigator.clipboard.readText().then(text => text === 'manage.py locks show -- video:1')"
    )
    let_pass(page, 1)
    expect(page.get_by_role("status").filter(has_text="Copied.")).to_be_attached()
    assert lease.token not in page.content()
    assert errors == []


def test_every_page_fits_a_phone(open_page: Open, errors: list[str]) -> None:
    acquire("video:1", task="shop.tasks.send_nightly_report", task_id="0a1b2c3d-4e5f-6789-93f5")
    page = open_page(viewport={"width": 390, "height": 844})
    for name, path in PAGES.items():
        page.goto(path)
        # A style sheet may come after the text.
        until(lambda: not page.evaluate(TOO_WIDE), f"that the page {name} fits")
        for button in page.locator("#content").locator("button, [type=submit]").all():
            box = button.bounding_box()
            assert box is None or (box["x"] >= 0 and box["x"] + box["width"] <= 391), name
    assert errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_wrong(open_page: Open, scheme: str) -> None:
    acquire("video:1", task="videos.transcode", task_id="id-1")
    page = open_page(color_scheme=scheme)
    found: list[str] = []
    for name, path in PAGES.items():
        page.goto(path)
        page.evaluate(AXE_SCRIPT)
        said = page.evaluate(f"axe.run({OURS}, {{resultTypes: ['violations']}})")
        found += [
            f"{name}: {rule['id']}: {node['target']} {node['failureSummary']}"
            for rule in said["violations"]
            for node in rule["nodes"]
        ]
    assert not found, "\n".join(found)


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
