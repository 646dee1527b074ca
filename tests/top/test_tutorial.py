"""The newcomer's way: the blocks of the tutorial, in a folder of their own.

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
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import ROOT, Block, blocks
from tests.projects import Project
from tests.servers import RedisServer, free_port
from tests.waiting import until

TUTORIAL = ROOT / "docs/tutorial.md"
WORK = (r"time\.sleep\(\d+\)", "while __import__('os').path.exists('hold'): time.sleep(0.02)")
"""what a job's work is here: to wait until a file is gone"""

pytestmark = pytest.mark.slow


class Newcomer:
    """Somebody who does what a page says, block by block."""

    def __init__(self, folder: Path, server: RedisServer) -> None:
        self.project = Project(folder)
        self.running: list[subprocess.Popen[bytes]] = []
        self._site = f"http://127.0.0.1:{free_port()}"
        self._redis = f"redis://127.0.0.1:{server.port}"
        jar = http.cookiejar.CookieJar()
        self._browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))

    def do(self, block: Block) -> str:
        """Write the file, or run the commands. Returns what these printed."""
        if block.language == "sh":
            return "".join(map(self.run, block.text.splitlines()))
        file, _, where = re.sub(r"^(# |<!-- )| -->$", "", block.label).partition(", ")
        assert where in ("", "at the end"), block.label
        text = block.text.replace("redis://127.0.0.1:6379", self._redis)
        self.project.write(file, re.sub(*WORK, text), append=bool(where))
        return ""

    def run(self, line: str) -> str:
        """Run a command line; a worker or the site stay. Returns what it printed."""
        command = shlex.split(line)
        if command[0] == "celery":
            worker = self.project.start(*command, log="worker.log")
            self.running.append(worker)
            until(lambda: " ready." in self.log() or worker.poll() is not None, "ready")
            assert worker.poll() is None, self.log()
        elif command[1:] == ["manage.py", "runserver"]:
            port = self._site.rpartition(":")[2]
            self.running.append(self.project.start(*command, port, "--noreload", log="site.log"))
            until(lambda: "Quit the server" in self.log("site.log"), "the site")
        else:
            return self.project.run(*command)
        return ""

    def page(self, path: str, **form: str) -> str:
        data = urllib.parse.urlencode(form).encode() if form else None
        with self._browser.open(self._site + path, data=data, timeout=20) as response:
            return str(response.read().decode())

    def press(self, video: int) -> None:
        """Press the button of a video."""
        path, text = f"/videos/{video}/process/", self.page("/")
        assert f'action="{path}"' in text
        (token, *_) = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', text)
        self.page(path, csrfmiddlewaretoken=token)

    def log(self, file: str = "worker.log") -> str:
        """What the worker has printed, or the site."""
        return (self.project.folder / file).read_text(errors="replace")

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Jobs that start meanwhile do not end before this does."""
        (self.project.folder / "hold").touch()
        yield
        (self.project.folder / "hold").unlink()


@pytest.fixture
def newcomer(tmp_path: Path, own_redis_server: RedisServer) -> Iterator[Newcomer]:
    newcomer = Newcomer(tmp_path, own_redis_server)
    yield newcomer
    for process in newcomer.running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def test_the_tutorial_from_nothing_to_a_job_that_survives_a_kill(newcomer: Newcomer) -> None:
    # Given a newcomer who has done what the tutorial says, up to its last command
    every = [block for kind in ("python", "html", "sh") for block in blocks(TUTORIAL, kind)]
    *before, listing = sorted(every, key=lambda block: block.line)
    assert listing.text == "python manage.py locks list\n"
    said = "".join(map(newcomer.do, before))
    assert "System check identified no issues" in said

    # When they press a button twice, I expect a skip, a lock in the list, and one run
    (skipped,) = blocks(TUTORIAL, "text")[:1]
    marker = skipped.text.partition(": {")[2].partition("'holder'")[0]
    with newcomer.at_work():
        newcomer.press(1)
        newcomer.press(1)
        until(lambda: marker in newcomer.log(), "the skip")
        assert "video:1 " in newcomer.do(listing)
    until(lambda: newcomer.log().count("video 1: part 20 of 20") == 1, "the end of the job")
    until(lambda: "video:1 " not in newcomer.do(listing), "the free lock")
    newcomer.press(1)
    until(lambda: "'reason': 'invalid_state'" in newcomer.log(), "nothing to do")

    # When they kill the worker's process at work, I expect the same message to do the job
    assert "kill -9 PID\n" in [block.text for block in blocks(TUTORIAL, "text")]
    with newcomer.at_work():
        newcomer.press(2)
        until(lambda: "video 2: part 1 of 20" in newcomer.log(), "work")
        (pid,) = re.findall(r"^video:2 .* \S+:(\d+) ", newcomer.do(listing), re.MULTILINE)
        os.kill(int(pid), signal.SIGKILL)
        until(lambda: newcomer.log().count("video 2: part 1 of 20") == 2, "again")
    until(lambda: newcomer.log().count("video 2: part 20 of 20") == 1, "the end of the second job")
    until(lambda: "video:2 " not in newcomer.do(listing), "the free lock")
    ids = re.findall(r"process_video\[([\w-]+)\] received", newcomer.log())
    assert len(ids) == len(set(ids)) + 1, "the killed job came back under its own id"
