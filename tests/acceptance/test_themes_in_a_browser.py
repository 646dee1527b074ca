"""The admin's pages in Chromium, under Django's own theme and under those that replace it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from django_tasklock import Lease, locks
from django_tasklock._values.owner_record import SINCE, owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Refusal
from tests.acceptance.test_admin_history_browser import until_it_fits
from tests.conftest import UseRedis
from tests.integration.operators.test_reservations import reserve
from tests.themes import HOST, LIST, NAME, PAGES, TASK, THEMES, served, task_id

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.fixture(scope="module")
def browser(chromium_path: Path) -> Iterator[Browser]:
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        # Playwright's loop runs in this thread; the tests' own queries do not run in it.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(
            executable_path=chromium_path,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        expect.set_options(timeout=20_000)
        yield browser
        browser.close()


class Site:
    """The site under one theme: its locks are those of this test."""

    def __init__(self, theme: str, url: str, browser: Browser) -> None:
        self.theme = theme
        self.url = url
        self.leases: list[Lease] = []
        self.contexts: list[BrowserContext] = []
        self._browser = browser
        self._client = Client()
        self._client.force_login(User.objects.create_superuser("operator"))

    def hold(self, number: int) -> Lease:
        """Take a lock with names as they are in use; number 0 is that of `PAGES`."""
        name = NAME if number == 0 else f"{NAME[:-3]}{456 + number}"
        lease = locks.try_acquire(
            name, ttl=600 + number, task=TASK, task_id=task_id(number), renew=False
        )
        assert isinstance(lease, Lease)
        self.leases.append(lease)
        return lease

    def context(self, width: int, height: int = 900, scheme: str = "light") -> BrowserContext:
        """Return a browser's context that is logged in."""
        context = self._browser.new_context(
            base_url=self.url, viewport={"width": width, "height": height},
            color_scheme=scheme,  # type: ignore[arg-type]
        )  # fmt: skip
        self.contexts.append(context)
        context.set_default_timeout(20_000)
        # unfold and jazzmin keep the choice of dark there, and start light.
        context.add_init_script(
            f"localStorage.setItem('_x_adminTheme', '\"{scheme}\"');"
            f"localStorage.setItem('jazzmin-theme-mode', '{scheme}');"
        )
        cookie = self._client.cookies[settings.SESSION_COOKIE_NAME]
        context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": self.url}])
        context.route(lambda url: not url.startswith(self.url), lambda route: route.abort())
        return context

    def open(self, path: str = LIST, width: int = 1280, scheme: str = "light") -> Page:
        """Return a page of the admin in a context of its own."""
        page = self.context(width, scheme=scheme).new_page()
        page.goto(path)
        return page


@pytest.fixture
def site(
    request: pytest.FixtureRequest,
    browser: Browser,
    use_redis: UseRedis,
    process_env: Callable[[], dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Site]:
    """The site under the theme that is the parameter, with three locks and two reservations."""
    use_redis()
    with served(request.param, process_env()) as url:
        monkeypatch.setattr("socket.gethostname", lambda: HOST)
        site = Site(request.param, url, browser)
        for number in range(3):
            site.hold(number)
        assert locks.acquire("video:99") is not None
        assert locks.clear("video:99", by="anna")
        for number in range(2):
            reserve(stores["default"], f"{NAME}{number}", task=TASK)
        yield site
        for context in site.contexts:
            context.close()


under_each_theme = pytest.mark.parametrize("site", THEMES, indirect=True)


def row(page: Page, name: str) -> Any:
    return page.locator("#result_list tr").filter(has_text=name)


@under_each_theme
def test_refresh_shows_each_lock_once_and_keeps_the_focus(site: Site) -> None:
    # Given an open list, with the focus on a lock's link
    page = site.open()
    link = row(page, NAME).get_by_role("link")
    link.focus()

    # When one lock ends and another begins
    site.leases[1].release()
    site.hold(7)
    names = [f"video:123{number}" for number in (456, 458, 463)]

    # I expect the table to have each lock once, in its order, in rows like those it came with
    expect(page.locator("#result_list .field-name")).to_have_text(names)
    expect(link).to_be_focused()
    first, last = (row(page, name).locator(".field-name") for name in (names[0], names[2]))
    assert last.get_attribute("class") == first.get_attribute("class")
    expect(page.locator("#result_list [data-tasklock-row]")).to_have_count(3)
    assert page.locator("#result_list tbody").count() == (3 if site.theme == "unfold" else 1)
    site.hold(8)
    expect(page.get_by_text("4 locks")).to_be_visible()

    # And a box that came by itself to count as the others do
    row(page, names[2]).get_by_role("checkbox").check()
    expect(page.locator(".action-counter").first).to_contain_text("1 of 4 selected")


@under_each_theme
def test_lock_is_found_by_its_task_and_cleared_from_its_page(site: Site) -> None:
    other = locks.try_acquire("other:1", ttl=600, task="shop.tasks.other", renew=False)
    assert isinstance(other, Lease)
    page = site.open()
    if site.theme == "jazzmin":  # its filters are lists, sent with the search
        page.locator("select[data-name=task]").select_option(TASK, force=True)
        page.locator("#changelist-search button").click()
    else:
        if site.theme == "unfold":
            page.locator("a").filter(has_text="Filters").click()
        page.get_by_role("link", name=TASK, exact=True).click()
    expect(row(page, "other:1")).to_have_count(0)
    row(page, NAME).get_by_role("link").click()
    page.get_by_role("button", name="Clear this lock…").click()
    page.get_by_role("button", name="Clear this lock", exact=True).click()
    expect(page.get_by_text(f"“{NAME}” was cleared.")).to_be_visible()
    assert not locks.is_locked(NAME)


CUT = """() => [...document.querySelectorAll('#result_list tbody :is(td, th)')].filter(cell => {
    const box = cell.getBoundingClientRect();
    for (let at = cell.parentElement; at; at = at.parentElement) {
        if (getComputedStyle(at).overflowX !== 'visible'
                && box.right > at.getBoundingClientRect().right + 1) return true;
    }
    return box.right > innerWidth + 1;
}).map(cell => cell.className)"""
BROKEN = """() => [...document.querySelectorAll('#result_list tbody :is(td, th)')].filter(cell => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    const words = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), middles = [];
    for (let node; node = words.nextNode();) {
        range.selectNodeContents(node);
        if (node.data.trim()) {
            middles.push(...[...range.getClientRects()].map(r => r.y + r.height / 2));
        }
    }
    return Math.max(...middles) - Math.min(...middles) > 8;
}).map(cell => cell.className)"""


@under_each_theme
def test_every_column_is_seen_in_one_line_at_1280(site: Site) -> None:
    # With as long a wait as there is in two units
    since = time.time() - 23 * 3600 - 59 * 60
    waiter = locks.store.waiter(NAME, new_token(), 600.0, owner_record() | {SINCE: since})
    assert waiter is not None
    assert isinstance(waiter.ask(), Refusal)
    page = site.open()
    expect(row(page, NAME)).to_be_visible()
    expect(row(page, NAME).locator(".field-longest_wait")).to_have_text(re.compile("^23h59m$"))
    assert page.evaluate(CUT) == []
    assert page.evaluate(BROKEN) == []
    for path in PAGES.values():
        page.goto(path)
        until_it_fits(page, path)
    # The whole of a shortened task id is there for the pointer, and to be copied
    page.goto(LIST)
    cell = row(page, NAME).locator(".field-task_id")
    expect(cell.get_by_title(task_id(0))).to_have_text(task_id(0))
    waiter.quit()


CONTROLS = """() => [...document.querySelectorAll(
    '#result_list tbody :is(a, input), .tasklock-live button, .object-tools a,'
    + '.submit-row :is(a, input, button), .delete-confirmation form :is(a, [type=submit]),'
    + '.queued form :is([type=submit], [type=search]), .tasklock-hold fieldset input'
    )].filter(it => {
    const box = it.getBoundingClientRect();
    return it.checkVisibility() && (box.left < -1 || box.right > innerWidth + 1 || !box.width);
}).map(it => it.outerHTML)"""


@under_each_theme
def test_every_page_fits_a_phone(site: Site) -> None:
    page = site.open(width=390)
    for name, path in PAGES.items():
        page.goto(path)
        if name in ("list", "confirm"):
            assert page.evaluate(CUT) == [], name
        until_it_fits(page, name)
        assert page.evaluate(CONTROLS) == [], name


OURS = (
    "#tasklock-problems", ".tasklock-live", "#result_list tbody", "#health_list", ".object-tools",
    ".tasklock-waiting", ".tasklock-commands", ".tasklock-title", ".tasklock-clear",
    ".delete-confirmation form", ".tasklock-hold form", ".queued form", ".model-lock p.help",
)  # fmt: skip
"""selectors of what our templates draw; all else on a page is the theme's"""
# Which landmarks a page has is the theme's: unfold has none around the content.
FOUND = """async (ours) => (await axe.run(document, {
        resultTypes: ['violations'], rules: {region: {enabled: false}}})).violations
    .flatMap(said => said.nodes.filter(node =>
        document.querySelector(node.target.at(-1))?.closest(ours))
        .map(node => `${said.id}: ${node.target} ${node.failureSummary}`))"""


@under_each_theme
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_of_ours(site: Site, scheme: str) -> None:
    page = site.open("/admin/login/", scheme=scheme)
    found: list[str] = []
    for name, path in PAGES.items():
        page.goto(path)
        page.evaluate(AXE_SCRIPT)
        found += [f"{name}: {some}" for some in page.evaluate(FOUND, ", ".join(OURS))]
    assert not found, "\n".join(found)


PICTURES = os.environ.get("TASKLOCK_PICTURES_OF_PAGES")
"""a folder; its pictures are named <theme>-<page>-<light, dark or phone>.png"""


@under_each_theme
def test_pictures_of_every_page(site: Site, tmp_path: Path) -> None:
    """Where TASKLOCK_PICTURES_OF_PAGES names a folder they are kept there, else thrown away."""
    folder = Path(PICTURES or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    kinds = [("light", 1280, "light"), ("dark", 1280, "dark"), ("phone", 390, "light")]
    # As in the night: somebody waits, a process is gone, an operator holds a lock
    store, gone = locks.store, {"pid": 4194303, "start": 1}
    waiter = store.waiter(NAME, new_token(), 600.0, owner_record(TASK, task_id(5)))
    assert waiter is not None
    waiter.ask()
    store.acquire("report:2026-11-20", new_token(), 500.0, owner_record(TASK, task_id(9)) | gone)
    assert locks.hold("deploy", 3600, by="anna", reason="migration 0042") is not None
    for kind, width, scheme in kinds if PICTURES else kinds[:1]:
        page = site.open(width=width, scheme=scheme)
        for name, path in PAGES.items():
            page.goto(path, wait_until="load")
            file = folder / f"{site.theme}-{name}-{kind}.png"
            picture = page.screenshot(path=file, full_page=kind == "phone")
            assert picture.startswith(b"\x89PNG\r\n")
    waiter.quit()
