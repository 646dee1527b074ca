"""The admin page in a real Chromium, under a strict Content-Security-Policy."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.test.utils import override_settings
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    expect,
    sync_playwright,
)
from pytest_django.live_server_helper import LiveServer

from django_tasklock import Lease, locks
from django_tasklock._values.describe import duration
from django_tasklock.admin import LockAdmin
from tests.agent import Agent
from tests.conftest import UseRedis
from tests.servers import RedisServer

pytestmark = pytest.mark.slow

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
TIMEOUT_MS = 60_000
"""milliseconds"""
LIST = "/admin/django_tasklock/lock/"
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
            args=[
                "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
            ],
        )  # fmt: skip
        # The machine may be busy; what is expected comes at once where it is not.
        expect.set_options(timeout=TIMEOUT_MS)
        yield browser
        browser.close()


@pytest.fixture
def errors() -> list[str]:
    """What the browser's console complained about, violations of the policy among it."""
    return []


@pytest.fixture
def open_as(
    browser: Browser, live_server: LiveServer, use_redis: UseRedis, errors: list[str]
) -> Iterator[Open]:
    """``open_as("view_lock", path=..., **context)``: a page, logged in with these permissions.

    With ``through`` it asks that port of localhost instead of the site's own.
    """
    use_redis()
    contexts: list[BrowserContext] = []

    def complain(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            errors.append(message.text)

    def open_page(
        *codenames: str, path: str = LIST, through: int | None = None, **options: Any
    ) -> Page:
        url = live_server.url if through is None else f"http://localhost:{through}"
        user = User.objects.create_user(f"user-{len(contexts)}", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        client = Client()
        client.force_login(user)
        context = browser.new_context(base_url=url, **options)
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        cookie = client.cookies[settings.SESSION_COOKIE_NAME]
        context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": url}])
        context.route(lambda to: not to.startswith(url), lambda route: route.abort())
        page = context.new_page()
        page.on("console", complain)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path)
        return page

    yield open_page
    for context in contexts:
        context.close()


def acquire(name: str, ttl: float = 600, **who: Any) -> Lease:
    lease = locks.try_acquire(name, ttl=ttl, **who)
    assert isinstance(lease, Lease)
    return lease


def row(page: Page, name: str) -> Any:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


def test_countdown_moves(open_as: Open, errors: list[str]) -> None:
    # Given a lock on an open page
    acquire("video:123", ttl=900)
    page = open_as("view_lock")
    ttl = row(page, "video:123").locator(".tasklock-ttl")
    age = row(page, "video:123").locator(".tasklock-age")
    first_ttl, first_age = ttl.inner_text(), age.inner_text()
    assert first_ttl.startswith("14m")

    # I expect the TTL to fall and the age to rise without a reload
    expect(ttl).not_to_have_text(first_ttl)
    expect(age).not_to_have_text(first_age)
    assert ttl.inner_text() < first_ttl

    # And the end to be said when it comes, here a second from now
    page.get_by_role("button", name="Pause").click()
    ttl.evaluate("cell => cell.dataset.tasklockTtl = performance.now() / 1000 + 1")
    expect(ttl).to_have_text("expired or extended")
    assert errors == []


def test_wait_comes_with_a_refresh_and_grows(open_as: Open, errors: list[str]) -> None:
    # Given an open list on which nobody waits
    acquire("video:1", 900)
    lease = acquire("video:2", 910)
    page = open_as("view_lock")
    cell = row(page, "video:2").locator(".field-longest_wait")
    expect(cell).to_have_text("-")

    # When another process begins to wait
    with Agent() as agent:
        agent.tell("acquire", name="video:2", ttl=600.0, wait=None)

        # I expect its wait without a reload, counting up, and since when on hover
        wait = cell.locator("time")
        expect(wait).to_have_text(re.compile(r"^(\d+\.\d|\d+)s$"))
        expect(wait).to_have_attribute("title", re.compile("^waits since 20"))
        shown = wait.inner_text()
        expect(wait).not_to_have_text(shown)
        expect(row(page, "video:1").locator(".field-longest_wait")).to_have_text("-")

        # And the lock to come first by its column's header, clicked twice
        for _ in range(2):
            page.locator("thead .column-longest_wait .text a").click()
        expect(page.locator("#result_list .field-name")).to_have_text(["video:2", "video:1"])

        # And the same on the lock's page, for the lock and for its waiter
        row(page, "video:2").get_by_role("link").click()
        for found in (".field-wait_by_name time", ".tasklock-waiting time"):
            shown = page.locator(found).inner_text()
            expect(page.locator(found)).not_to_have_text(shown)
            expect(page.locator(found)).to_have_attribute("title", re.compile("^waits since 20"))
        locks.clear("video:2")
    lease.release()
    assert errors == []


def test_browser_and_server_say_durations_alike(open_as: Open) -> None:
    ttls = [119, 125.5, 180, 754, 3599.5, 3600, 3700, 86399, 86400, 90061, 863999]
    for number, ttl in enumerate(ttls):
        acquire(f"lock:{number}", ttl)
    page = open_as("view_lock")
    age = page.locator(".tasklock-age").first
    expect(age).not_to_have_text(age.inner_text())  # the browser has begun to count
    cells = page.locator(".tasklock-ttl")
    assert cells.count() == len(ttls)
    for cell in cells.all():
        drawn = float(cell.get_attribute("data-tasklock-ttl") or "nan")
        assert cell.inner_text() in {duration(drawn - passed / 10) for passed in range(1200)} | {
            "expired or extended"
        }


def test_a_page_without_locks_leads_to_the_first_of_the_same_search(
    open_as: Open, errors: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given the last page of a search, with one lock
    monkeypatch.setattr(LockAdmin, "list_per_page", 2)
    acquire("other", 300)
    leases = [acquire(f"video:{number}", 600) for number in range(5)]
    page = open_as("view_lock", path=f"{LIST}?q=video&o=1&p=3")
    expect(row(page, "video:4")).to_be_visible()

    # When that lock is released, I expect the first page of the same search
    leases[-1].release()
    expect(row(page, "video:0")).to_be_visible()
    expect(row(page, "other")).to_have_count(0)
    assert page.url.endswith(f"{LIST}?q=video&o=1")
    assert errors == []


def test_clear_works(open_as: Open, errors: list[str]) -> None:
    acquire("video:1")
    acquire("video:2")
    page = open_as("view_lock", "delete_lock")

    row(page, "video:1").get_by_role("checkbox").check()
    page.get_by_role("combobox", name="Action").select_option("Clear selected locks")
    page.get_by_role("button", name="Go").click()
    expect(page.get_by_role("heading", name="Clear this lock?")).to_be_visible()
    page.get_by_role("button", name="Clear this lock").click()

    expect(page.get_by_text("“video:1” was cleared.")).to_be_visible()
    expect(row(page, "video:2")).to_be_visible()
    expect(row(page, "video:1")).to_have_count(0)
    assert not locks.is_locked("video:1")
    assert errors == []


def test_clear_works_without_javascript(open_as: Open) -> None:
    acquire("video:1")
    page = open_as("view_lock", "delete_lock", java_script_enabled=False)
    expect(row(page, "video:1").locator(".tasklock-ttl")).to_contain_text("s")

    row(page, "video:1").get_by_role("link", name="video:1").click()
    page.get_by_role("button", name="Clear this lock…").click()
    page.get_by_role("button", name="Clear this lock").click()

    expect(page.get_by_text("“video:1” was cleared.")).to_be_visible()
    assert not locks.is_locked("video:1")


def test_no_take_me_back_leads_to_the_list(open_as: Open, errors: list[str]) -> None:
    acquire("video:1")
    page = open_as("view_lock", "delete_lock", path=f"{LIST}default_3Avideo_3A1/delete/")
    page.get_by_role("link", name="No, take me back").click()
    expect(row(page, "video:1")).to_be_visible()
    assert locks.is_locked("video:1")
    assert errors == []


def test_permission_is_refused(open_as: Open) -> None:
    acquire("video:1")
    page = open_as("view_lock")
    expect(row(page, "video:1")).to_be_visible()
    expect(page.get_by_role("checkbox")).to_have_count(0)
    row(page, "video:1").get_by_role("link").click()
    expect(page.get_by_text("video:1").first).to_be_visible()
    expect(page.get_by_role("button", name="Clear this lock…")).to_have_count(0)
    for refused in (f"{LIST}default_3Avideo_3A1/delete/", f"{LIST}clear/"):
        response = page.goto(refused)
        assert response is not None
        assert response.status == 403
    assert locks.is_locked("video:1")


def test_policy_is_in_force(open_as: Open, errors: list[str]) -> None:
    # Without this, the other tests' lists of errors might be empty for no good reason.
    page = open_as("view_lock")
    assert errors == []
    page.evaluate("document.body.setAttribute('onclick', '1')")
    page.evaluate("document.body.append(Object.assign(document.createElement('style')))")
    page.evaluate(
        "{const s = document.createElement('script'); s.text = 'window.ran = 1';"
        " document.body.append(s)}"
    )
    assert page.evaluate("window.ran") is None
    assert any("Content Security Policy" in error for error in errors)


def test_store_that_is_down_shows_a_message(
    open_as: Open, use_redis: UseRedis, own_redis_server: RedisServer, errors: list[str]
) -> None:
    use_redis(own_redis_server.url)
    own_redis_server.kill()
    page = open_as("view_lock", "delete_lock")
    expect(page.get_by_role("alert")).to_contain_text("The store “default” is unavailable")
    assert errors == []


def assert_fits(page: Page) -> None:
    page.wait_for_load_state()  # Before its style sheets are there, any page is wide.
    too_wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert page.evaluate(too_wide) is False


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_a_phone(open_as: Open, scheme: str, errors: list[str]) -> None:
    acquire("video:123", 90, task="videos.transcode", task_id="0a1b2c3d-4e5f-6789")
    page = open_as(
        "view_lock", "delete_lock", viewport={"width": 390, "height": 844}, color_scheme=scheme
    )
    expect(row(page, "video:123")).to_be_visible()
    assert_fits(page)
    row(page, "video:123").get_by_role("link").click()
    clear = page.get_by_role("button", name="Clear this lock…")
    expect(clear).to_be_visible()
    assert_fits(page)
    clear.click()
    page.wait_for_url("**/delete/")
    expect(page.get_by_role("button", name="Clear this lock", exact=True)).to_be_visible()
    assert_fits(page)
    assert errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lock_is_held_from_a_phone(open_as: Open, scheme: str, errors: list[str]) -> None:
    page = open_as(
        "view_lock", "delete_lock", viewport={"width": 390, "height": 844}, color_scheme=scheme
    )
    page.get_by_role("link", name="Hold…").click()
    assert_fits(page)
    page.get_by_label("Name:").fill("video:1")
    page.get_by_label("Duration:").fill("1h30m")
    page.get_by_label("Reason:").fill("database migration, " * 9)
    page.get_by_role("button", name="Hold this lock").click()

    expect(page.get_by_text("“video:1” is held for 1h30m")).to_be_visible()
    expect(row(page, "video:1")).to_contain_text("database migration")
    assert_fits(page)
    row(page, "video:1").get_by_role("link").click()
    expect(page.get_by_text("operator user-0").first).to_be_visible()
    assert_fits(page)
    assert errors == []


# ------------------------------------------------------------------------------ kept up to date


def test_new_lock_appears_and_an_ended_one_goes(open_as: Open, errors: list[str]) -> None:
    # Given an open list, where somebody has reached a lock's link with the keyboard
    first, second = acquire("video:1", 600), acquire("video:2", 700)
    page = open_as("view_lock", "delete_lock")
    link = row(page, "video:2").get_by_role("link")
    link.focus()

    # When one lock ends, another begins, and a third changes hands
    first.release()
    acquire("video:3", 500)
    expect(row(page, "video:3")).to_be_visible()
    expect(row(page, "video:1")).to_have_count(0)

    # I expect the list to say so by itself, in its order, and the link to have kept the focus
    expect(page.locator("#result_list th.field-name")).to_have_text(["video:3", "video:2"])
    expect(link).to_be_focused()
    expect(page.locator("#changelist-form .paginator")).to_contain_text("2 locks")

    # And a box that came by itself to count as the others do
    row(page, "video:3").get_by_role("checkbox").check()
    expect(page.locator(".action-counter")).to_have_text("1 of 2 selected")
    row(page, "video:2").get_by_role("checkbox").check()
    expect(page.locator("#action-toggle")).to_be_checked()
    page.locator("#action-toggle").uncheck()
    expect(row(page, "video:3").get_by_role("checkbox")).not_to_be_checked()
    second.release()
    expect(row(page, "video:2")).to_have_count(0)
    assert errors == []


def test_first_lock_appears_on_an_empty_list(open_as: Open, errors: list[str]) -> None:
    page = open_as("view_lock", "delete_lock")
    expect(page.get_by_text("0 locks")).to_be_visible()
    acquire("video:1")
    expect(row(page, "video:1")).to_be_visible()
    assert errors == []


def asks(page: Page) -> list[str]:
    """The page's questions for JSON, from now on."""
    asked: list[str] = []

    def note(request: Request) -> None:
        if "/live/" in request.url:
            asked.append(request.url)

    page.on("request", note)
    return asked


def wait_for_a_look(page: Page) -> None:
    with page.expect_response(lambda response: "/live/" in response.url):
        pass


def test_it_pauses_while_a_box_is_ticked_and_when_told_to(open_as: Open) -> None:
    acquire("video:1")
    page = open_as("view_lock", "delete_lock")
    words = page.locator("#tasklock-live span")
    wait_for_a_look(page)
    expect(words).to_have_text("Kept up to date.")

    # I expect no question for more than two turns while a box is ticked
    row(page, "video:1").get_by_role("checkbox").check()
    expect(words).to_have_text("Paused while locks are ticked.")
    asked = asks(page)
    page.wait_for_timeout(9_000)
    assert asked == []
    row(page, "video:1").get_by_role("checkbox").uncheck()
    wait_for_a_look(page)

    # Nor after its button was pressed, until it is pressed again
    page.get_by_role("button", name="Pause").click()
    expect(words).to_have_text("Paused.")
    asked.clear()
    page.wait_for_timeout(9_000)
    assert asked == []
    with page.expect_response(lambda response: "/live/" in response.url):
        page.get_by_role("button", name="Resume").click()


def test_it_pauses_while_the_tab_is_hidden(open_as: Open) -> None:
    acquire("video:1")
    page = open_as("view_lock")
    wait_for_a_look(page)
    # A headless browser shows every tab: what a page learns of being hidden is said to it here.
    hide = (
        "hidden => {Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange'))}"
    )
    page.evaluate(hide, True)
    asked = asks(page)
    page.wait_for_timeout(9_000)
    assert asked == []
    with page.expect_response(lambda response: "/live/" in response.url):
        page.evaluate(hide, False)


def test_store_that_goes_down_under_an_open_page_is_said(
    open_as: Open, use_redis: UseRedis, own_redis_server: RedisServer, errors: list[str]
) -> None:
    use_redis(own_redis_server.url)
    acquire("video:1")
    page = open_as("view_lock")
    expect(row(page, "video:1")).to_be_visible()
    own_redis_server.kill()
    expect(page.get_by_role("alert")).to_contain_text("The store “default” is unavailable")
    assert errors == []


def test_filters_work_by_keyboard(open_as: Open, errors: list[str]) -> None:
    acquire("video:1", task="videos.transcode")
    acquire("video:2", task="videos.publish")
    page = open_as("view_lock")
    choice = page.get_by_role("navigation", name="Filter").get_by_role(
        "link", name="videos.publish"
    )
    choice.focus()
    page.keyboard.press("Enter")
    expect(row(page, "video:1")).to_have_count(0)
    expect(row(page, "video:2")).to_be_visible()
    # Also what comes by itself is what the filter lets through
    acquire("video:3", task="videos.transcode")
    acquire("video:4", task="videos.publish")
    expect(row(page, "video:4")).to_be_visible()
    expect(row(page, "video:3")).to_have_count(0)
    assert errors == []


# ------------------------------------------------------------------------------ pictures

PICTURES = Path(__file__).parents[2] / "docs" / "screenshots"


@pytest.mark.parametrize(
    ("name", "scheme", "width", "height"),
    [("light", "light", 1440, 720), ("dark", "dark", 1440, 720), ("phone", "light", 390, 844)],
)
def test_pictures_for_the_docs(
    open_as: Open,
    errors: list[str],
    tmp_path: Path,
    name: str,
    scheme: str,
    width: int,
    height: int,
) -> None:
    """Where TASKLOCK_PICTURES is set they are kept in the docs, else thrown away."""
    # Given some locks as a site has them
    leases = [
        acquire(name, ttl, renew=renew, task=task, task_id=f"7d0a61-{ttl}-93f5-4d9c-b1f4-5f2f1a3e")
        for name, ttl, renew, task in (
            ("video:481", 41, True, "videos.tasks.process"),
            ("video:482", 58, True, "videos.tasks.process"),
            ("report:2026-11-20", 590, False, "reports.tasks.build"),
            ("invoice:77", 24, True, "billing.tasks.charge"),
        )
    ]
    page = open_as(
        "view_lock",
        "delete_lock",
        viewport={"width": width, "height": height},
        color_scheme=scheme,
    )
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    assert_fits(page)
    # The bar says what the number says
    bar = row(page, "video:481").locator(".tasklock-bar")
    assert 0 < bar.evaluate("bar => bar.position") <= 1

    folder = PICTURES if os.environ.get("TASKLOCK_PICTURES") else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    picture = page.screenshot(path=folder / f"admin-{name}.png")

    assert picture.startswith(b"\x89PNG\r\n")
    assert int.from_bytes(picture[16:20], "big") == width
    assert (PICTURES / f"admin-{name}.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert errors == []
    assert all(lease.release() for lease in leases)
