"""What every process that plays is made of: who starts and harms it, and what its threads do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from django_tasklock import StoreUnavailable
from example_project.die_with_parent import die_with_parent
from tests.nightly.chaos.history import History, now

__all__ = ["Moves", "Player"]

ROOT = Path(__file__).resolve().parents[3]


class Player:
    """One process at a time in one place. It runs a module with a folder, its name, and more."""

    def __init__(
        self, place: int, history: History, env: dict[str, str], module: str, folder: Path,
        *arguments: str,
    ) -> None:  # fmt: skip
        self._place, self._history, self._env, self._started = place, history, env, 0
        self._module, self._folder, self._arguments = module, folder, arguments
        self.harmed = threading.Lock()
        """whoever stops or kills it has this"""
        self._start()

    def _start(self) -> None:
        self._started += 1
        self.name = f"{self._place}.{self._started}"
        play = [sys.executable, "-m", self._module, str(self._folder), self.name, *self._arguments]
        with (self._folder / f"{self.name}.log").open("wb") as log:
            self.process = subprocess.Popen(
                die_with_parent(play, by=signal.SIGKILL), stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, cwd=ROOT, start_new_session=True, env=os.environ | self._env,
            )  # fmt: skip

    def has_begun(self) -> bool:
        return (self._folder / f"{self.name}.jsonl").exists()

    def stop_for(self, seconds: float) -> None:
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def kill(self) -> None:
        """SIGKILL, and a new one in its place."""
        since, status = now(), self.process.poll()
        self.end()
        if status is None:
            self._history.write("fault", fault="killed", whom=self.name, since=since)
        else:
            self._history.write("died", whom=self.name, since=since, status=status)
        self._start()

    def rest(self, until: float) -> None:
        """Wait for its end; the log of one that does not come to it says where it is."""
        while self.process.poll() is None and now() < until:
            time.sleep(0.05)
        self.process.send_signal(signal.SIGUSR1)
        if status := self.process.returncode:
            self._history.write("died", whom=self.name, since=now(), status=status)


class Moves:
    """What one thread does with the locks, at random, and writes down. Each move is a call with a
    name of its own; what it does depends on the ``seed``, and on that name, alone."""

    def __init__(self, history: History, thread: str, seed: str) -> None:
        self._write = history.write
        self._thread = f"{history.process}/{thread}"
        self._chance = Random(f"{seed}/{self._thread}")

    def run(
        self, goes_on: Callable[[], bool], move: Callable[[str], None], pause: Callable[[], float]
    ) -> None:
        number = 0
        while goes_on():
            number += 1
            call = f"{self._thread}/{number}"
            try:
                move(call)
            except StoreUnavailable as error:
                self._write("unavailable", call, reason=str(error))
            except Exception as error:
                self._write("raised", call, error=f"{type(error).__name__}: {error}")
            time.sleep(pause())
