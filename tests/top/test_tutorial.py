"""The newcomer's way: the blocks of the README and of the tutorial, in a folder of their own.

Every block is a file, or commands, and is taken as it stands, but for the address of Redis, the
port of the site, and the job, which works for as long as the test wants.
"""

from __future__ import annotations

import contextlib
import http.cookiejar
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pages import README, ROOT, Block, blocks
from tests.projects import Project
from tests.servers import RedisServer, free_port
from tests.waiting import until

TUTORIAL = ROOT / "docs/tutorial.md"
WORK = (r"time\.sleep\(\d+\)", "while __import__('os').path.exists('hold'): time.sleep(0.02)")
"""what a job's work is here: to wait until a file is gone"""

pytestmark = pytest.mark.slow


class Newcomer:
    """Somebody who does what a page says, block by block."""

    def __init__(self, project: Project, server: RedisServer) -> None:
        self.project = project
        self.port = free_port()
        self._redis = f"redis://127.0.0.1:{server.port}"
        self.running: list[subprocess.Popen[bytes]] = []
        jar = http.cookiejar.CookieJar()
        self._browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))

    def do(self, block: Block) -> str:
        """Write the file, or run the commands. Returns what the last of them printed."""
        said = ""
        if block.language == "sh":
            for line in block.text.splitlines():
                said = self.run(line)
            return said
        file, _, where = re.sub(r"^(# |<!-- )| -->$", "", block.label).partition(", ")
        assert where in ("", "at the end"), block.label
        text = block.text.replace("redis://127.0.0.1:6379", self._redis)
        self.project.write(file, re.sub(*WORK, text), append=bool(where))
        return said

    def shell(self, source: str) -> str:
        """Run Python in the project. Returns what it printed."""
        return self.project.run("python", "manage.py", "shell", "-c", source)

    def run(self, line: str) -> str:
        """Run a command line; a worker or the site stay. Returns what it printed."""
        program, *arguments = shlex.split(line)
        if program == "celery":
            worker = self.project.start(program, *arguments, log="worker.log")
            self.running.append(worker)
            until(lambda: " ready." in self.log() or worker.poll() is not None, "ready")
            assert worker.poll() is None, self.log()
        elif arguments == ["manage.py", "runserver"]:
            site = (program, *arguments, str(self.port), "--noreload")
            self.running.append(self.project.start(*site, log="site.log"))
            until(self._answers, "the site's answer")
        else:
            return self.project.run(program, *arguments)
        return ""

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.page())
        return False

    def page(self) -> str:
        """The site's only page."""
        with self._browser.open(f"http://127.0.0.1:{self.port}/", timeout=20) as response:
            return str(response.read().decode())

    def press(self, video: int) -> None:
        """Press the button of a video."""
        text = self.page()
        (action,) = re.findall(rf'action="(/videos/{video}/process/)"', text)
        (token, *_) = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', text)
        form = urllib.parse.urlencode({"csrfmiddlewaretoken": token}).encode()
        url = f"http://127.0.0.1:{self.port}{action}"
        with self._browser.open(url, data=form, timeout=20) as response:
            assert response.status == 200

    def log(self) -> str:
        """What the worker has printed."""
        return (self.project.folder / "worker.log").read_text(errors="replace")

    def row(self, video: int) -> tuple[str, Any]:
        """Status and fence of a video."""
        path = self.project.folder / "db.sqlite3"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            found: tuple[str, Any] = database.execute(
                "SELECT status, lock_fence FROM videos_video WHERE id = ?", (video,)
            ).fetchone()
        return found

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Jobs that start meanwhile do not end before this does."""
        (self.project.folder / "hold").touch()
        yield
        (self.project.folder / "hold").unlink()

    def is_ready(self, video: int) -> bool:
        return self.row(video)[0] == "ready"


@pytest.fixture
def newcomer(tmp_path: Path, own_redis_server: RedisServer) -> Iterator[Newcomer]:
    newcomer = Newcomer(Project(tmp_path), own_redis_server)
    yield newcomer
    for process in newcomer.running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def steps(page: Path, *, until_label: str = "", heading: str = "") -> list[Block]:
    """The blocks that somebody works through, in their order; with a heading, those under it."""
    found = [block for kind in ("python", "html", "sh") for block in blocks(page, kind, heading)]
    found.sort(key=lambda block: block.line)
    labels = [block.label for block in found]
    return found[: labels.index(until_label)] if until_label else found


def test_the_example_of_the_readme_on_a_new_project(newcomer: Newcomer) -> None:
    # Given a project that has Celery and a Redis cache, as the tutorial makes it,
    (start, settings, *project) = steps(TUTORIAL, heading="The project")
    without_us = settings.text.replace('"django_tasklock", ', "")
    assert without_us != settings.text
    for block in (start, replace(settings, text=without_us), *project):
        newcomer.do(block)
    # when the README's blocks are added to it, and its task is sent twice,
    for block in steps(README, until_label="# anywhere else"):
        newcomer.do(block)
    for command in (
        "python manage.py makemigrations videos",
        "python manage.py migrate",
        "celery -A mysite worker -l INFO",
    ):
        newcomer.run(command)
    newcomer.shell("from videos.models import Video; Video.objects.create()")
    with newcomer.at_work():
        newcomer.shell("from videos.tasks import process_video as it; it.delay(1); it.delay(1)")
        until(lambda: newcomer.row(1)[0] == "processing", "a run")
        until(lambda: newcomer.log().count("received") == 2, "both messages")
    # then I expect one run, and one message that is skipped.
    until(lambda: newcomer.is_ready(1), "the end of the job")
    until(lambda: newcomer.log().count("succeeded in") == 2, "both results")
    assert newcomer.row(1)[1] is not None, "the claim left no fence"
    assert len(re.findall(r"succeeded in \S+: None", newcomer.log())) == 1
    assert len(re.findall(r"succeeded in \S+: {'status': 'skipped'", newcomer.log())) == 1


def test_the_tutorial_from_nothing_to_a_job_that_survives_a_kill(newcomer: Newcomer) -> None:
    *before, listing = steps(TUTORIAL)
    assert listing.text == "python manage.py locks list\n"
    said = [newcomer.do(block) for block in before]
    assert "System check identified no issues" in "".join(said)

    # The first button, twice.
    (skipped,) = blocks(TUTORIAL, "text")[:1]
    marker = skipped.text.partition(": {")[2].partition("'holder'")[0]
    with newcomer.at_work():
        newcomer.press(1)
        newcomer.press(1)
        until(lambda: marker in newcomer.log(), "the skip")
        assert "video:1 " in newcomer.do(listing)
    until(lambda: newcomer.is_ready(1), "the end of the job")
    assert newcomer.log().count("video 1: part 20 of 20") == 1
    newcomer.press(1)
    until(lambda: "'reason': 'invalid_state'" in newcomer.log(), "nothing to do")

    # The second, and a kill.
    assert "kill -9 PID\n" in [block.text for block in blocks(TUTORIAL, "text")]
    with newcomer.at_work():
        newcomer.press(2)
        until(lambda: "video 2: part 1 of 20" in newcomer.log(), "work")
        (pid,) = re.findall(r"^video:2 .* \S+:(\d+) ", newcomer.do(listing), re.MULTILINE)
        os.kill(int(pid), signal.SIGKILL)
        until(lambda: newcomer.log().count("video 2: part 1 of 20") == 2, "again")
    until(lambda: newcomer.is_ready(2), "the end of the second job")
    assert newcomer.log().count("video 2: part 20 of 20") == 1
    ids = re.findall(r"process_video\[([\w-]+)\] received", newcomer.log())
    assert len(ids) == len(set(ids)) + 1, "the killed job came back under its own id"
    assert "video:2 " not in newcomer.do(listing)
