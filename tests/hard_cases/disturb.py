"""What goes wrong in a round of the randomised test, and how its outcome is judged."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from random import Random

from tests.hard_cases.brokers import connect
from tests.hard_cases.ledger import Run
from tests.hard_cases.stage import Stage
from tests.hard_cases.workers import children, gone
from tests.waiting import until

MARGIN_SECONDS = (
    0.25  # seconds before a body's end in which it is left alone: its effect is being written
)


class Disturber:
    """Strikes at random, and remembers whom.

    A process killed between the effect of its body and the row's update must do the work again;
    no lock can help that. Bodies are therefore struck while they work, not while they end.
    """

    def __init__(self, stage: Stage, chance: Random, sent: dict[str, int]) -> None:
        self.stage = stage
        self.chance = chance
        self.sent = sent
        self.jobs = sorted(set(sent.values()))
        self.struck: dict[int, float] = {}
        self._asleep: list[threading.Timer] = []

    def strike(self) -> None:
        """Wait a little, then do one bad thing."""
        time.sleep(self.chance.uniform(0.1, 1.0))
        deed: Callable[[], bool] = self.chance.choice(
            [self.kill_child, self.kill_child, self.kill_main, self.stop_child, self.cut]
        )
        deadline = time.monotonic() + 1
        while not (done := deed()) and time.monotonic() < deadline:
            time.sleep(0.02)
        print(f"{time.monotonic():.3f} {deed.__name__}{'' if done else ': nobody to strike'}")

    def kill_child(self) -> bool:
        """SIGKILL the process of a running body."""
        for pid in self.victims():
            self.struck[pid] = self.stage.kill(pid)
            return True
        return False

    def kill_main(self) -> bool:
        """SIGKILL a worker's main process, and start another worker."""
        working = set(self.working())
        for worker in self.chance.sample(self.stage.workers, len(self.stage.workers)):
            pool = set(children(worker.pid)) if worker.running else set()
            if pool and pool & working <= set(self.victims()):
                with self.stage.broker.still() as ids:
                    if ids is not None and not self.unfinished() <= {self.sent.get(i) for i in ids}:
                        return False
                    for pid in pool:
                        self.stage.watch(pid)
                        self.struck[pid] = time.monotonic()
                    self.stage.broker.end(worker.pid, partial(self.stage.kill, worker.pid))
                self.stage.worker(concurrency=2, wait=False)
                return True
        return False

    def stop_child(self) -> bool:
        """SIGSTOP the process of a running body, for less or more than its lease."""
        for pid in self.victims():
            self.struck[pid] = time.monotonic()
            os.kill(pid, signal.SIGSTOP)
            timer = threading.Timer(self.chance.uniform(0.5, 8), self.wake, [pid])
            timer.start()
            self._asleep.append(timer)
            return True
        return False

    def cut(self) -> bool:
        """Break the connections to the broker, or those to the Redis of the locks."""
        if self.chance.random() < 0.5:
            self.stage.broker.cut()
        else:
            with connect(self.stage.locks) as client:
                client.client_kill_filter(_type="normal", skipme=True)
        return True

    @staticmethod
    def wake(pid: int) -> None:
        """SIGCONT, if the process is still there."""
        if not gone(pid):
            os.kill(pid, signal.SIGCONT)

    def calm(self) -> None:
        """No more strikes: wait until nobody sleeps."""
        for timer in self._asleep:
            timer.join(15)

    def working(self) -> list[int]:
        """The processes that run a body now."""
        return [run.start.pid for run in self.running()]

    def victims(self) -> list[int]:
        """Processes that may be struck now, in random order."""
        now = time.monotonic()
        found = [
            run.start.pid
            for run in self.running()
            if run.start.pid not in self.struck
            and run.start.at + run.start.planned - MARGIN_SECONDS > now
        ]
        return self.chance.sample(found, len(found))

    def running(self) -> list[Run]:
        """Runs that have not ended."""
        return [run for run in self.stage.ledger.runs() if run.end == float("inf")]

    def unfinished(self) -> set[int | None]:
        """The rows that are not done."""
        return {job for job in self.jobs if self.stage.row(job)[0] != "done"}

    def wait_done(self, within: float) -> None:
        """Wait until every row is done."""
        until(
            lambda: not self.unfinished(),
            "every row is done",
            within,
            every=0.2,
        )

    def assert_done_once(self, job: int) -> None:
        """One effect, by the run whose fence the row bears, beside no other living run."""
        runs = self.stage.ledger.runs(job=job)
        completed = [run for run in runs if run.completed]
        assert len(completed) == 1, f"job {job} was done {len(completed)} times"
        assert self.stage.row(job) == ("done", completed[0].start.fence)
        for first, second in pairwise(runs):
            assert second.start.at >= self.end(first) or not first.lasts_into(second), (
                f"two runs of job {job} at once"
            )

    def end(self, run: Run) -> float:
        """When a run could last do any harm: a stopped one that woke up a loser did none."""
        struck = self.struck.get(run.start.pid)
        if struck is not None and not run.completed and run.start.at <= struck <= run.end:
            return struck
        return run.end
