"""Random kills, stops and cuts: afterwards every row is done, exactly once.

``HARD_CASES_ROUNDS=200`` plays more rounds than the usual 10; ``SEED=…`` plays those of another run
again, and ``-k "round-17"`` one of them.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from tests.seeds import drawn_seed
from tests.stage.brokers import connect
from tests.stage.fixtures import MakeStage
from tests.stage.ledger import Run
from tests.stage.scripted import lives
from tests.stage.stage import Stage
from tests.stage.workers import AS_ROOT, Worker, children
from tests.waiting import until

ROUNDS = int(os.environ.get("HARD_CASES_ROUNDS", "10"))
ROWS = 6
TTL_SECONDS = 5.0
MARGIN_SECONDS = 0.25
"""before a body's end, in which it is left alone: its effect is being written"""


class Kind(NamedTuple):
    """A kind of message: the task, the options of the call, and its runs before the one that
    works."""

    task: str
    options: dict[str, Any] = {}
    before: tuple[dict[str, Any], ...] = ()
    more: dict[str, Any] = {}
    """what is more in the script of the run that works"""


def early(how: str, to: int) -> dict[str, Any]:
    """The options of a message that ends before its body, at its first deliveries."""
    return {"headers": {"early": {"at": "before_start", "how": how, "to": to}}}


LIMITED = Kind("any", {"time_limit": 2}, ({"seconds": 30},))
"""its message comes back after the limit"""
RETRIED = Kind("any_unique", {}, ({"seconds": 0.1, "then": "raise"},) * 2)
GOOD = (
    *(Kind("guarded"), Kind("guarded"), Kind("guarded_retry"), Kind("any_waiting")),
    *(Kind("any", early("kill", 2)), Kind("any", early("sys.exit", 1)), LIMITED, RETRIED),
    Kind("any", {"serializer": "pickle"}, more={"no JSON": {1}}),
)
"""kinds whose work is done, whatever happens"""
BAD = (Kind("any", early("raise", 99)), Kind("any", early("reject", 99)))
"""kinds that fail: another message does the work"""
NAMED = Kind("any_named")
"""the name of its lock is that of the sending, so one message has the row to itself"""

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(240)]


@pytest.mark.parametrize("number", range(ROUNDS), ids=lambda number: f"round-{number}")
def test_whatever_is_killed_stopped_or_cut_every_row_is_done_once(
    make_stage: MakeStage, number: int
) -> None:
    # Given rows, each with one or some messages of any kind
    chance = random.Random(f"{drawn_seed()}-{number}")
    stage = make_stage(("redis", "rabbitmq")[number % 2], ttl=TTL_SECONDS, visibility=3)
    stage.conf["accept_content"] = ["json", "pickle"]
    stage.environment |= AS_ROOT
    stage.pair(concurrency=2)
    sent: dict[str, int] = {}
    for job in [stage.job() for _ in range(ROWS)]:
        work = {"seconds": round(chance.uniform(0.4, 1.5), 2), "check": True}
        kinds = [chance.choice(GOOD) for _ in range(chance.choice([1, 1, 2, 3]))]
        kinds += [chance.choice(BAD)] * chance.choice([0, 0, 1])
        for kind in chance.choice([kinds, kinds, kinds, kinds, [NAMED]]):
            script = [*kind.before, {**work, **kind.more}]
            sent[stage.call(kind.task, job, script, **kind.options).id] = job
            print(f"{time.monotonic():.3f} job {job}: {kind}")

    # And somebody who kills, stops and cuts at random
    disturber = Disturber(stage, chance, sent)
    for _ in range(4):
        disturber.strike()
    for timer in disturber.asleep:
        timer.join(15)

    # I expect each row to be done once, and no lock or message to be left
    until(lambda: not disturber.unfinished(), "every row is done", 90, every=0.2)
    stage.assert_settled()
    for job in disturber.jobs:
        disturber.assert_done_once(job)


class Disturber:
    """Strikes at random, and remembers whom.

    A process killed between the effect of its body and the row's update must do the work again;
    no lock can help that. Bodies are therefore struck while they work, not while they end.
    """

    def __init__(self, stage: Stage, chance: random.Random, sent: dict[str, int]) -> None:
        self.stage = stage
        self.chance = chance
        self.sent = sent
        self.jobs = sorted(set(sent.values()))
        self.struck: dict[int, float] = {}
        self.asleep: list[threading.Timer] = []

    def strike(self) -> None:
        """Wait a little, then do one bad thing."""
        time.sleep(self.chance.uniform(0.1, 1.0))
        often, seldom = (self.kill_child, self.shut_down), (self.kill_main, self.stop_child)
        deed: Callable[[], bool] = self.chance.choice(
            [*often, *often, *seldom, self.cut, self.rename]
        )
        deadline = time.monotonic() + 1
        while not (done := deed()) and time.monotonic() < deadline:
            time.sleep(0.02)
        print(f"{time.monotonic():.3f} {deed.__name__}{'' if done else ': nobody to strike'}")

    def kill_child(self) -> bool:
        victims = self.victims()
        if victims:
            self.struck[victims[0]] = self.stage.kill(victims[0])
        return bool(victims)

    def kill_main(self) -> bool:
        """SIGKILL a worker's main process, and start another worker."""
        for worker, pool in self.at_work():
            with self.stage.broker.still() as ids:
                if ids is not None and not self.unfinished() <= {self.sent.get(i) for i in ids}:
                    return False
                self.struck |= dict.fromkeys(pool, time.monotonic())
                self.stage.broker.end(worker.pid, partial(self.stage.kill, worker.pid))
            self.stage.worker(concurrency=2, wait=False)
            return True
        return False

    def shut_down(self) -> bool:
        """Ask a worker to stop, at once or when its bodies have ended, and start another one."""
        for worker, _ in self.at_work():
            how = self.chance.choice([signal.SIGTERM, signal.SIGQUIT])
            worker.send(how)
            if how == signal.SIGQUIT:
                # As a supervisor does. Celery 5.7 never ends if it is told so just when its pool
                # replaces a child: it reads the pipe of the new one.
                self._later(8, worker.end)
            self.stage.worker(concurrency=2, wait=False)
            return True
        return False

    def at_work(self) -> list[tuple[Worker, set[int]]]:
        """Workers whose bodies may all be struck now, in random order; and their children."""
        working = {run.start.pid for run in self.running()}
        workers = self.chance.sample(self.stage.workers, len(self.stage.workers))
        pools = [(each, set(children(each.pid)) if each.running else set()) for each in workers]
        victims = set(self.victims())
        return [(each, pool) for each, pool in pools if pool and pool & working <= victims]

    def rename(self) -> bool:
        """Change what the name of a row's lock is made of."""
        with self.stage.rows() as connection:
            connection.execute("UPDATE stage_job SET result = result || 'x'")
        return True

    def stop_child(self) -> bool:
        """SIGSTOP the process of a running body, for less or more than its lease."""
        victims = self.victims()
        for pid in victims[:1]:
            self.struck[pid] = time.monotonic()
            os.kill(pid, signal.SIGSTOP)
            self._later(self.chance.uniform(0.5, 8), partial(os.kill, pid, signal.SIGCONT))
        return bool(victims)

    def _later(self, seconds: float, deed: Callable[[], object]) -> None:
        """Do something to a process, if it is still there then."""

        def do() -> None:
            with suppress(ProcessLookupError):
                deed()

        self.asleep.append(threading.Timer(seconds, do))
        self.asleep[-1].start()

    def cut(self) -> bool:
        """Break the connections to the broker, or those to the Redis of the locks."""
        if self.chance.random() < 0.5:
            self.stage.broker.cut()
        else:
            with connect(self.stage.locks) as client:
                client.client_kill_filter(_type="normal", skipme=True)
        return True

    def running(self) -> list[Run]:
        """Runs that have not ended, and whose process lives."""
        return [run for run in self.stage.ledger.runs() if lives(run)]

    def victims(self) -> list[int]:
        """Processes that may be struck now, in random order."""
        soon = time.monotonic() + MARGIN_SECONDS
        found = [
            run.start.pid
            for run in self.running()
            if run.start.pid not in self.struck and run.start.at + run.start.planned > soon
        ]
        return self.chance.sample(found, len(found))

    def unfinished(self) -> set[int | None]:
        return {job for job in self.jobs if self.stage.row(job)[0] != "done"}

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
