"""The admin's pages in other themes: each finds its buttons, its links and its colours there."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests import needs
from tests.nightly.surroundings.at_work import need
from tests.pages import DOCS, ROOT, blocks
from tests.projects import Project
from tests.servers import RedisServer, free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

SETTINGS = """
SECRET_KEY, DEBUG, ROOT_URLCONF, STATIC_URL = "x", True, "urls", "/static/"
CONTRIB = ("admin", "auth", "contenttypes", "sessions", "messages", "staticfiles")
INSTALLED_APPS = ["{theme}", *(f"django.contrib.{{name}}" for name in CONTRIB)]
INSTALLED_APPS += ["django_tasklock", "shop"]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
PROCESSORS = ["template.context_processors.request", "contrib.auth.context_processors.auth",
              "contrib.messages.context_processors.messages"]
TEMPLATES = [{{
    "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
    "OPTIONS": {{"context_processors": [f"django.{{name}}" for name in PROCESSORS]}},
}}]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "site.sqlite3"}}}}
CACHES = {{"default": {{
    "BACKEND": "django_redis.cache.RedisCache", "LOCATION": "{redis}", "KEY_PREFIX": "{theme}",
}}}}
"""
URLS = """
from django.contrib import admin
from django.urls import path
urlpatterns = [path("admin/", admin.site.urls)]
"""
CONTRAST = """element => {
    const style = getComputedStyle(element);
    return [style.color, style.backgroundColor];
}"""


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=10):
            return True
    except URLError:
        return False


@pytest.fixture(params=["unfold", "jazzmin"])
def site(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer
) -> Iterator[str]:
    """The address of a site with this theme, as its project runs it. With unfold, it has the class
    that the docs have."""
    theme = request.param
    need(theme)
    project = Project(tmp_path)
    project.environment |= {
        "PYTHONPATH": str(ROOT),
        "DJANGO_SETTINGS_MODULE": "settings",
        "DJANGO_SUPERUSER_PASSWORD": "secret",
    }
    project.write("settings.py", SETTINGS.format(theme=theme, redis=redis_server.url))
    project.write("urls.py", URLS)
    project.write("shop/__init__.py", "")
    if theme == "unfold":
        (block,) = (
            each for each in blocks(DOCS / "operate.md", "python") if "unfold" in each.label
        )
        project.write("shop/admin.py", block.text)
    project.run("django-admin", "migrate", "--verbosity=0")
    project.run(
        "django-admin",
        "createsuperuser",
        "--noinput",
        "--username=anna",
        "--email=anna@example.com",
    )
    address = f"127.0.0.1:{free_port()}"
    process = project.start("django-admin", "runserver", "--noreload", address, log="site.log")
    try:
        until(lambda: process.poll() is not None or answers(f"http://{address}/admin/"), "the site")
        assert process.poll() is None, (tmp_path / "site.log").read_text()
        yield f"http://{address}/admin/"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def page(site: str) -> Iterator[Page]:
    """Its list of locks, for one who may do all."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=needs.chromium(), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_context().new_page()
        page.route(lambda to: not to.startswith(site.removesuffix("admin/")), lambda it: it.abort())
        page.goto(site)
        page.locator("[name=username]").fill("anna")
        page.locator("[name=password]").fill("secret")
        page.locator("[name=password]").press("Enter")
        page.wait_for_load_state()
        page.goto(f"{site}django_tasklock/lock/")
        yield page
        browser.close()


def assert_says_what_it_does(page: Page) -> None:
    """No button of the theme's says another thing of what is done here, and ours can be read."""
    shown = page.locator("#content, main, .app-main").first
    words = re.compile(r"^\s*(Delete|Add)\b|Are you sure")
    expect(shown.get_by_text(words)).to_have_count(0)
    expect(page.get_by_title("Add lock")).to_have_count(0)
    for button in page.locator(".button").all():
        text, behind = button.evaluate(CONTRAST)
        assert text != behind
        assert behind != "rgba(0, 0, 0, 0)"


def test_a_lock_is_held_seen_and_cleared_and_all_pages_are_linked(page: Page) -> None:
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    # Given a lock that is held on the theme's own form
    assert_says_what_it_does(page)
    page.get_by_text("Hold…").click()
    page.locator("[name=name]").fill("nightly-report")
    page.locator("[name=reason]").fill("a migration")
    assert_says_what_it_does(page)
    page.get_by_role("button", name="Hold", exact=True).click()
    expect(page.get_by_text("“nightly-report” is held")).to_be_visible()
    expect(page.get_by_text("Held by operator anna")).to_be_visible()
    assert_says_what_it_does(page)

    # I expect it in the list, and the other pages beside it
    page.goto(page.url.split("/lock/")[0] + "/lock/")
    expect(page.locator("#result_list")).to_contain_text("nightly-report")
    for tab, words in {"Health": "nothing wrong", "Events": "a migration"}.items():
        page.locator(".tasklock-tabs").get_by_role("link", name=tab).click()
        expect(page.get_by_text(words)).to_be_visible()
        assert_says_what_it_does(page)

    # And a list that follows its store: the lock is cleared on another page
    page.locator(".tasklock-tabs").get_by_role("link", name="Locks").click()
    other = page.context.new_page()
    other.goto(page.url)
    other.get_by_role("link", name="nightly-report").click()
    other.get_by_role("button", name="Clear…").click()
    expect(other.get_by_text("The operator’s hold ends: jobs may start.")).to_be_visible()
    assert_says_what_it_does(other)
    other.get_by_role("button", name="Clear this lock").click()
    expect(other.get_by_text("Cleared: “nightly-report”.")).to_be_visible()
    page.bring_to_front()
    expect(page.get_by_text("The store lists no lock.")).to_be_visible(timeout=60_000)
    assert errors == []
