"""A process of one place, in a group of its own, and how each kind of it is started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from example_project.die_with_parent import die_with_parent
from tests.nightly.chaos.history import now
from tests.servers import free_port
from tests.stage.workers import children, gone

__all__ = ["Kind", "Program", "kinds"]

ROOT = Path(__file__).resolve().parents[3]
PYTHON = (sys.executable, "-m")


class Kind(NamedTuple):
    """What runs in a place."""

    command: Callable[[str], list[str]]
    """of a process of this name"""
    forks: int
    """how many children it has; 0: it works itself"""
    reloads: bool = False
    """whether SIGHUP deploys it: its children are replaced"""
    environment: Mapping[str, str] = {}


def kinds(ports: Mapping[str, int], until: Callable[[], float], seed: str) -> dict[str, Kind]:
    """What runs in each place; those that end in 1 are spared: they live as long as the soak.

    ``until`` is asked when a process is started that has to know when the soak ends."""

    def worker(name: str) -> list[str]:
        app = [*PYTHON, "celery", "-A", "tests.nightly.soak.app", "worker", "-l", "INFO"]
        return [*app, "-n", f"{name}@soak", "-c", "2", "--without-gossip", "--without-mingle"]

    def site(place: str, *options: str) -> Callable[[str], list[str]]:
        conf = Path(__file__).with_name("gunicorn_conf.py")
        command = [
            *(*PYTHON, "gunicorn", f"--bind=127.0.0.1:{ports[place]}", "--workers=2"),
            *("--worker-class=gthread", "--threads=2", "--no-control-socket", "--timeout=60"),
            *(f"--config={conf}", *options, "tests.nightly.soak.site:application"),
        ]
        return lambda name: command

    def play(name: str) -> list[str]:
        return [*PYTHON, "tests.nightly.soak.player", str(until()), seed]

    def send(name: str) -> list[str]:
        sites = ",".join(map(str, ports.values()))
        return [*PYTHON, "tests.nightly.soak.sender", str(until()), seed, sites]

    preload = {"SOAK_PRELOAD": "1", "SOAK_VERSION": os.devnull}
    return {
        "worker1": Kind(worker, 2),
        "worker2": Kind(worker, 2),
        "site1": Kind(site("site1", "--preload"), 2, reloads=True, environment=preload),
        "site2": Kind(site("site2"), 2, reloads=True),
        "plain1": Kind(play, 0),
        "plain2": Kind(play, 0),
        "sender1": Kind(send, 0),
    }


def site_ports() -> dict[str, int]:
    return {"site1": free_port(), "site2": free_port()}


class Program:
    """One process, with what it forks. It runs in the soak's folder, so that no package there comes
    before the one that the path names."""

    def __init__(
        self, name: str, kind: Kind, folder: Path, version: str, environment: Mapping[str, str]
    ) -> None:
        self.name, self.kind, self.version = name, kind, version
        self.seen: dict[int, float] = {}
        """of each of its processes: when it was last known to live"""
        self.leaving: float | None = None
        """when it was told to end"""
        path = os.pathsep.join(filter(None, [version, str(ROOT)]))
        own = {"SOAK_NAME": name, "SOAK_FOLDER": str(folder), "PYTHONPATH": path}
        own |= {"PYTHONSAFEPATH": "1", "GUNICORN_CMD_ARGS": ""}
        with (folder / f"{name}.log").open("wb") as log:
            self._process = subprocess.Popen(
                die_with_parent(kind.command(name)), stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, cwd=folder, start_new_session=True,
                env={**os.environ, **environment, **kind.environment, **own},
            )  # fmt: skip
        self.pid = self._process.pid
        self.log = folder / f"{name}.log"
        self.look()

    @property
    def status(self) -> int | None:
        """None while its main process runs."""
        return self._process.poll()

    @property
    def children(self) -> list[int]:
        return children(self.pid)

    def look(self) -> dict[int, float]:
        """Look who lives. Returns those who have gone, and when they last lived."""
        found = [self.pid, *self.children] if self.status is None else []
        at = now()
        self.seen |= dict.fromkeys(found, at)
        lost = {pid: since for pid, since in self.seen.items() if pid not in found and gone(pid)}
        for pid in self.seen.keys() - lost.keys():
            self.seen[pid] = at
        for pid in lost:
            del self.seen[pid]
        return lost

    def signal(self, number: int) -> None:
        if self.status is None:
            self._process.send_signal(number)

    def kill_group(self) -> None:
        """SIGKILL to all of its processes that live."""
        if self.status is None or not all(map(gone, self.seen)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
