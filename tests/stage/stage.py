"""A stage: one broker, one ledger, one database, and the workers of a test."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from celery import Celery
from celery.result import AsyncResult

from tests.celery_apps import disconnect
from tests.servers import RedisServer
from tests.stage import caller, workers
from tests.stage.brokers import Broker, address, connect
from tests.stage.ledger import Entry, Ledger
from tests.stage.workers import ROOT, Worker
from tests.waiting import until

Script = Sequence[dict[str, Any]]


class Begun(NamedTuple):
    """A job whose body has started: its row, its result and its start."""

    job: int
    result: AsyncResult[Any]
    start: Entry


class Stage:
    """What one test plays on; ``close`` ends everything it started."""

    def __init__(
        self, folder: Path, broker: Broker, results: RedisServer, locks: RedisServer, ttl: float
    ) -> None:
        self.folder = folder
        self.broker = broker
        self.broker_port = results.port
        self.locks = locks
        self.redis = connect(locks, 2)
        self.queue = f"q{uuid.uuid4().hex[:8]}"
        self.ledger = Ledger(folder / "ledger")
        self.database = folder / "jobs.sqlite3"
        self.workers: list[Worker] = []
        self._gates: list[Path] = []
        self._callers: dict[str, caller.Caller] = {}
        self._starting = threading.Lock()
        self.conf: dict[str, Any] = {
            "broker_url": broker.url,
            "broker_transport_options": broker.options,
            "broker_connection_retry_on_startup": True,
            "result_backend": address(results, 1),
            "task_default_queue": self.queue,
            "worker_prefetch_multiplier": 1,
            "task_track_started": False,
        }
        self.environment = {
            "DJANGO_SETTINGS_MODULE": "tests.stage.settings",
            "STAGE_LEDGER": str(self.ledger.path),
            "STAGE_DATABASE": str(self.database),
            "STAGE_LOCKS": address(locks, 2),
            "STAGE_TTL": str(ttl),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        self.client = Celery("client", set_as_current=False)
        self.client.conf.update(self.conf)
        with self.rows() as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(
                "CREATE TABLE stage_job (id integer PRIMARY KEY AUTOINCREMENT, status varchar(20)"
                " NOT NULL, lock_fence bigint NULL, result varchar(200) NOT NULL)"
            )

    def use_quorum_queue(self, limit: int) -> None:
        """From now on, the queue is a quorum queue, which delivers a message again ``limit`` times.

        It is not the default queue, and workers consume from it alone. It takes all messages
        whose routing key begins with its name.
        """

        def queue(name: str) -> dict[str, Any]:
            arguments = {"x-queue-type": "quorum", "x-delivery-limit": limit}
            routes = {"exchange": name, "exchange_type": "topic", "routing_key": f"{name}.#"}
            return {**routes, "queue_arguments": arguments}

        default = f"{self.queue}-default"
        self.conf |= {
            "broker_transport_options": {"confirm_publish": True},
            "task_default_queue": default,
            "task_queues": {name: queue(name) for name in (default, self.queue)},
        }
        self.client.conf.update(self.conf)
        # Celery's worker delays nothing natively if any of the queues is not there yet.
        with self.client.connection() as connection:
            for declared in self.client.amqp.queues.values():
                declared(connection.default_channel).declare()

    # -- processes

    def settings(self, **conf: Any) -> dict[str, str]:
        """The environment of a process, with Celery's settings changed as said here."""
        celery = json.dumps({**self.conf, **conf})
        return {**os.environ, **self.environment, "STAGE_CELERY": celery}

    def worker(
        self,
        *,
        conf: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        wait: bool = True,
        **options: Any,
    ) -> Worker:
        """Start a worker, and wait until it is ready; ``options`` are those of `Worker`."""
        name = f"w{len(self.workers) + 1}"
        settings = self.settings(**(conf or {})) | (environment or {})
        worker = Worker(name, self.folder / f"{name}.log", settings, **options)
        self.workers.append(worker)
        return worker.wait_ready() if wait else worker

    def pair(self, **options: Any) -> tuple[Worker, Worker]:
        first, second = self.worker(wait=False, **options), self.worker(wait=False, **options)
        return first.wait_ready(), second.wait_ready()

    def script(self, source: str, within: float = 60.0) -> str:
        """What Python source prints that runs beside the workers, with their project."""
        return self._caller().ask(caller.run, source, within=within)

    def locks_command(self, *arguments: str, **options: Any) -> str:
        """What ``manage.py locks`` says to an operator."""
        return self._caller().ask(caller.command, arguments, options)

    def doctor(self, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(
            self.locks_command("doctor", "--format", "json", *arguments)
        )
        return found

    def _caller(self) -> caller.Caller:
        """The one that has the settings of now."""
        key = json.dumps([self.environment, self.conf])
        with self._starting:
            if key not in self._callers:
                self._callers[key] = caller.Caller(self.settings())
            return self._callers[key]

    # -- jobs

    @contextmanager
    def rows(self) -> Iterator[sqlite3.Connection]:
        """The database of the jobs: a transaction, and closed after it."""
        with closing(sqlite3.connect(self.database, timeout=20)) as connection, connection:
            yield connection

    def job(self, status: str = "new") -> int:
        """A new row; returns its primary key."""
        with self.rows() as connection:
            cursor = connection.execute(
                "INSERT INTO stage_job (status, result) VALUES (?, '')", [status]
            )
            assert cursor.lastrowid is not None
            return cursor.lastrowid

    def row(self, job: int) -> tuple[str, int | None]:
        with self.rows() as connection:
            found = connection.execute("SELECT status, lock_fence FROM stage_job WHERE id=?", [job])
            status, fence = found.fetchone()
        return status, fence

    def send(self, task: str, job: int, script: Script = (), **options: Any) -> AsyncResult[Any]:
        """Publish one message, by the task's name."""
        return self.client.send_task(task, [job, list(script)], **options)

    def call(self, task: str, job: int, script: Script = (), **options: Any) -> AsyncResult[Any]:
        """Call the task itself, in a process that has the project's code and settings."""
        task_id = self._caller().ask(caller.call, task, (job, list(script)), options)
        return self.client.AsyncResult(task_id)

    def begin(self, task: str, *script: dict[str, Any], **options: Any) -> Begun:
        """Publish the message of a new job, and wait until its body has started."""
        job = self.job()
        result = self.send(task, job, script, **options)
        return Begun(job, result, self.started(job))

    @contextmanager
    def busy(self, task: str = "skip", *, check: bool = False, **options: Any) -> Iterator[Begun]:
        """A job whose body works as long as the block; or until `open_gates`."""
        step = {"gate": str(self.gate()), "check": check}
        yield self.begin(task, step, **options)
        self.open_gates()

    def gate(self) -> Path:
        """The path of a gate for a script; it opens when the file is made."""
        self._gates.append(self.folder / f"gate-{len(self._gates)}")
        return self._gates[-1]

    def open_gates(self) -> None:
        """End the work of every body that waits for a gate."""
        for gate in self._gates:
            gate.touch()

    def sig(self, task: str, *args: Any, **options: Any) -> Any:
        return self.client.signature(task, args=args, **options)

    # -- what happens

    def started(self, job: int, times: int = 1, within: float = 60.0) -> Entry:
        """Wait until the job's body has started so many times; returns the last start."""
        return until(
            lambda: self.ledger.entries("start", job=job)[times - 1 : times],
            f"job {job} started {times} times",
            within,
        )[0]

    def completed(self, job: int, within: float = 60.0) -> Entry:
        return until(lambda: self.ledger.entries("end", job=job), f"job {job} completed", within)[0]

    def kill(self, pid: int) -> float:
        """SIGKILL one process and wait for its death; returns the time of the signal."""
        return workers.kill(pid)

    def until_dead(self, pid: int) -> None:
        until(lambda: workers.gone(pid), f"the death of {pid}")

    def deliveries(self, task_id: str, times: int, event: str = "received") -> None:
        """Wait until workers have received a message of this id so many times; or, with "prerun",
        until their pools have called its task."""
        until(
            lambda: len(self.ledger.entries(event, task_id=task_id)) >= times,
            f"{task_id} {event} {times} times",
        )

    # -- what is there

    def held(self) -> list[str]:
        """The names of the locks that are held, asked from Redis itself.

        No lock's name has a space: "NAME cleared" is what the store keeps of a cleared lease.
        """
        keys = [key.decode() for key in self.redis.scan_iter(match="*:lock:*", _type="string")]
        names = [key.partition(":lock:")[2] for key in keys]
        return sorted(name for name in names if " " not in name)

    def lock_key(self, name: str) -> str:
        """The key under which the store keeps this lock."""
        return f":1:lock:{name}"

    def waiting(self, job: int) -> int:
        """How many are in the wait queue of the job's lock."""
        return int(self.redis.zcard(self.lock_key(f"job:{job}") + " queue"))

    def queued(self) -> int:
        """Messages in the queue, those that a worker holds included."""
        return self.broker.count(self.queue)

    def quiet(self) -> bool:
        """Whether no message is in the queue or in a worker, and none is going round."""
        received = len(self.ledger.entries("received"))
        # On its way from the queue to a worker a message may be in neither: look more than once.
        for _ in range(self.broker.looks):
            if self.queued():
                return False
            time.sleep(0.05)
        return received == len(self.ledger.entries("received"))

    def assert_settled(self, within: float = 60.0) -> None:
        """Nothing is left: no message in the queue or in a worker, no lock held."""
        until(self.quiet, "the queue is empty", within, every=0.1)
        until(lambda: not self.held(), "no lock is left", within, every=0.1)

    def assert_done_once(self, job: int) -> None:
        """The body ran to its end once, never beside another run, and the row says done."""
        self.assert_completed(job)
        assert self.row(job)[0] == "done"

    def assert_completed(self, job: int, times: int = 1, *, runs: int | None = None) -> None:
        """The body ran to its end so many times, in so many runs, never beside another run."""
        assert self.ledger.overlaps(job=job) == []
        assert self.ledger.completions(job=job) == times
        if runs is not None:
            assert len(self.ledger.runs(job=job)) == runs

    def assert_well(self, job: int, result: AsyncResult[Any], *, runs: int | None = None) -> None:
        """The job's result is its work, done once, and nothing is left."""
        assert result.get(timeout=60) == f"done:{job}"
        self.assert_settled()
        self.assert_completed(job, runs=runs)
        assert self.row(job)[0] == "done"

    def report(self) -> str:
        """Everything a failing test wants to show."""
        parts = [str(entry) for entry in self.ledger.entries()[-200:]]
        parts += [f"--- {worker.name}\n{worker.text()[-6000:]}" for worker in self.workers]
        return "\n".join(parts)

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
        for each in self._callers.values():
            each.end()
        backend: Any = self.client.backend
        backend.result_consumer.stop()
        # Results that are dropped later would open a connection to unsubscribe.
        backend.result_consumer.subscribed_to.clear()
        backend.client.close()
        backend.client.connection_pool.disconnect()
        disconnect(self.client)
        self.client.close()
        self.redis.close()
        self.broker.drop(self.queue)
