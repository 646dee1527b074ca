"""The process that asks: it sends messages, and calls the sites.

``python -m tests.nightly.soak.sender UNTIL SEED PORTS``. After UNTIL it waits until each row that
it has asked for is done, and asks again for one that is not done in time: Celery's transport for
Redis may lose a message whose worker, connection or server is killed. `SOAK_PLANT=lose` has it
forget to send one.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from http.client import HTTPException
from random import Random
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

import django
from django.db import connection

from tests.nightly.chaos.history import now
from tests.nightly.soak import DRAIN_SECONDS, LONGEST_BODY_SECONDS, PATIENCE_SECONDS, TTL_SECONDS
from tests.nightly.soak.book import book

PAUSE_SECONDS = (0.2, 1.1)
"""between two rows, which have 1 to 3 messages"""
VIEW_PAUSE_SECONDS = (0.05, 0.6)
SWEEP_SECONDS = 5.0
GROUPS, VIEWS = 3, 3
PLANTED_ROW = 20
"""that is not sent, where that is asked for"""


class Asked(NamedTuple):
    """A row that was asked for, and the arguments of its task."""

    at: float
    kind: str
    row: int
    group: int
    seconds: float


class Sender:
    """Sends, and remembers what is not done yet."""

    def __init__(self, seed: str) -> None:
        self._chance = Random(f"{seed}/sender")
        self._open: dict[int, Asked] = {}
        self._swept = now()
        self._forgotten = PLANTED_ROW if os.environ.get("SOAK_PLANT") == "lose" else None

    def ask(self) -> None:
        """One new row, or calls of a task without one."""
        from tests.nightly.soak.tasks import GUARDED, PLAIN

        chance = self._chance
        kind = chance.choice([*GUARDED, *GUARDED, *PLAIN])
        seconds = chance.uniform(0.02, 0.4)
        if chance.random() < 0.12:
            seconds = chance.uniform(TTL_SECONDS * 0.8, LONGEST_BODY_SECONDS)
        row = 0
        if kind in GUARDED or kind == "permits":
            from tests.stage.models import Job

            row = Job._default_manager.create(status="new", result=kind).pk
        asked = Asked(now(), kind, row, chance.randrange(GROUPS), seconds)
        times = chance.choices([1, 2, 3], [6, 3, 1])[0]
        if row and row == self._forgotten:
            times = 0
        book().write("asked for", row=row, task=kind, times=times)
        for _ in range(times):
            self.send(asked)
            time.sleep(chance.choice([0.0, 0.0, chance.uniform(0, 0.5)]))
        if row:
            self._open[row] = asked

    def send(self, asked: Asked) -> bool:
        """Whether the broker took it. If it says nothing, the row is asked for again later."""
        from tests.nightly.soak.tasks import TASKS

        try:
            TASKS[asked.kind].apply_async((asked.row, asked.group, asked.seconds))
        except Exception as error:
            book().write("not sent", row=asked.row, text=f"{type(error).__name__}: {error}")
            return False
        return True

    def sweep(self) -> None:
        """Forget what is done, and ask again for what is late."""
        from tests.stage.models import Job

        if now() - self._swept < SWEEP_SECONDS:
            return
        self._swept = now()
        done = Job._default_manager.filter(pk__in=[*self._open], status="done").values_list(
            "pk", flat=True
        )
        for row in done:
            del self._open[row]
        for row, asked in self._open.items():
            if now() - asked.at > PATIENCE_SECONDS and row != self._forgotten:
                status = Job._default_manager.get(pk=row).status
                book().write("asked again", row=row, task=asked.kind, since=asked.at, was=status)
                self._open[row] = asked._replace(at=now())
                self.send(asked)

    def run(self, until: float) -> None:
        while now() < until:
            self.ask()
            self.sweep()
            time.sleep(self._chance.uniform(*PAUSE_SECONDS))
        while self._open and now() < until + DRAIN_SECONDS:
            self.sweep()
            time.sleep(0.5)


class Client(threading.Thread):
    """Asks the sites for their views, one after the other."""

    def __init__(self, number: int, seed: str, ports: list[str], until: float) -> None:
        super().__init__(name=f"client {number}")
        self._chance = Random(f"{seed}/client/{number}")
        self._ports, self._until = ports, until
        self.answers: Counter[str] = Counter()

    def run(self) -> None:
        chance = self._chance
        while now() < self._until:
            kind, name = chance.choice(["work", "wait"]), chance.randrange(VIEWS)
            url = f"http://127.0.0.1:{chance.choice(self._ports)}/{kind}/{name}/"
            try:
                with urlopen(url, timeout=40) as response:
                    answer = str(response.status)
            except HTTPError as error:
                answer = str(error.code)
                error.close()
            except TimeoutError:
                answer = "none in time"
                book().write("silent view", url=url)
            except (OSError, HTTPException):
                answer = "cut"
            self.answers[answer] += 1
            time.sleep(chance.uniform(*VIEW_PAUSE_SECONDS))


def main(until: str, seed: str, ports: str) -> None:
    django.setup()
    over = float(until)
    clients = [Client(number, seed, ports.split(","), over) for number in range(2)]
    for client in clients:
        client.start()
    Sender(seed).run(over)
    for client in clients:
        client.join()
    answers = sum((client.answers for client in clients), Counter[str]())
    book().write("answers", answers=dict(answers))
    connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
