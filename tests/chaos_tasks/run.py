"""The conductor: starts everything, sends, disturbs, waits for the rest and ends everything."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.acceptance.hard_cases.brokers import address
from tests.acceptance.hard_cases.workers import ROOT
from tests.chaos.history import CONDUCTOR, History, now
from tests.chaos_tasks.plan import plan
from tests.chaos_tasks.servers import Database, Servers

__all__ = ["Options", "run"]

LONGEST_SECONDS = 120.0
"""and a second for each message, after which nothing more is sent"""
SILENCE_SECONDS = 20.0
"""for which the broker may have no message though a job is not over, before it is called lost"""


@dataclass(frozen=True)
class Options:
    """Of one run. ``pause``: seconds from one fault to the next."""

    tasks: int
    seed: str
    broker: str = "redis"
    workers: int = 4
    pool: int = 3
    pause: tuple[float, float] = (0.2, 2.5)
    patience: float = 240.0
    """seconds after the last fault in which all has to be over"""


def run(folder: Path, options: Options) -> None:
    """Play, and leave the history in the folder.

    Call it from the main thread of a process that has not set up Django.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    with contextlib.ExitStack() as stack:
        servers = Servers(folder, options.broker, stack)
        database = stack.enter_context(Database.own(folder))
        queue = f"chaos-{uuid.uuid4().hex[:8]}"
        stack.callback(servers.broker.drop, queue)
        environment = _environment(folder, servers, database, queue)
        os.environ.update(environment | {"CHAOS_TASKS_DATABASE": json.dumps(database.settings)})
        import django

        django.setup()
        # They ask for Django's settings.
        from tests.chaos_tasks import tables, tasks  # noqa: F401
        from tests.chaos_tasks.crew import Crew
        from tests.chaos_tasks.faults import Faults
        from tests.chaos_tasks.mender import Mender
        from tests.chaos_tasks.sender import Sender

        history = History(folder, CONDUCTOR)
        tables.make_tables(options.tasks)
        stack.callback(_close_connections)
        crew = Crew(folder, environment, options.workers, options.pool)
        stack.callback(crew.end)
        crew.wait_ready()
        children = options.workers * options.pool
        units = plan(options.tasks, Random(f"{options.seed}/plan"))
        sender = Sender(units, 6 * children, history)
        stack.callback(sender.stop)
        mender = Mender(sender, history)
        stack.callback(mender.stop)
        chance = Random(f"{options.seed}/faults")
        faults = Faults(crew, servers, database, sender, history, folder, chance)
        began = now()
        sender.start()
        mender.start()
        longest = began + LONGEST_SECONDS + options.tasks
        faults.run(lambda: sender.is_alive() and now() < longest, options.pause)
        sender.stop()
        _settle(servers, queue, sender, faults, crew, options.patience, history)
        mender.stop()
        for error in filter(None, (sender.error, mender.error)):
            raise error
        history.write("took", seconds=now() - began, messages=sender.sent)
        tables.write_entries(history)
        while crew.leaving():
            time.sleep(0.1)
            crew.end_stuck(history)
        crew.leave()


def _environment(folder: Path, servers: Servers, database: Database, queue: str) -> dict[str, str]:
    conf: dict[str, Any] = {
        "broker_url": servers.broker.url,
        "broker_transport_options": servers.broker.options,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "result_backend": address(servers.results, 1),
        # Else a child gives up at the first call that fails, and reports its task as failed.
        "result_backend_always_retry": True,
        "task_default_queue": queue,
        "task_publish_retry_policy": {"max_retries": 50, "interval_max": 0.5},
        "worker_prefetch_multiplier": 1,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
    }
    return {
        "DJANGO_SETTINGS_MODULE": "tests.chaos_tasks.settings",
        "CHAOS_TASKS_DATABASE": json.dumps(database.for_workers()),
        "CHAOS_TASKS_LOCKS": address(servers.locks),
        "CHAOS_TASKS_CELERY": json.dumps(conf),
        "CHAOS_TASKS_HISTORY": str(folder),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }


def _settle(
    servers: Servers,
    queue: str,
    sender: Any,
    faults: Any,
    crew: Any,
    patience: float,
    history: History,
) -> None:
    """Wait until no job is left, no message and nothing in the store; write what is left."""
    deadline, silent_since = now() + patience, None
    messages = 0
    while now() < deadline:
        faults.tick()
        crew.end_stuck(history)
        time.sleep(0.5)
        messages = servers.broker.count(queue)
        if messages:
            silent_since = None
            continue
        silent_since = silent_since or now()
        if not sender.unfinished() and not any(servers.left().values()):
            break
        if now() > silent_since + SILENCE_SECONDS:
            break
    left: dict[str, Any] = servers.left()
    history.write("at rest", unfinished=len(sender.unfinished()), messages=messages, **left)


def _close_connections() -> None:
    from django.db import connections

    connections.close_all()


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt
