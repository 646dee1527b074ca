"""Sends again what a full disk has left behind, as somebody does who looks after the jobs.

A guard whose UPDATE the database refuses fails its task with the database's error, and the message
is gone: docs/howto/guards.md. A claim that was refused leaves the row as it was, whose sender sees
the failure. A finish that was refused leaves it in the working status, where the doctor finds it.
The history says what was sent again and why, and the checker whether it had to be.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from celery import states
from django.db import close_old_connections

from django_tasklock import StoreUnavailable
from django_tasklock.operators.lost_work import lost_rows, works_by_rows
from tests.chaos.history import History, now
from tests.chaos_tasks.app import app
from tests.chaos_tasks.background import Background
from tests.chaos_tasks.plan import Unit
from tests.chaos_tasks.rules import NO_ROOM
from tests.chaos_tasks.sender import Sender

__all__ = ["Mender"]

LOOK_SECONDS = 0.5
ROOM_SECONDS = 2.0
"""after a failure for want of room, until there may be some"""
PATIENT_SECONDS = 20.0
"""for which nothing may become of a job whose messages have failed with another error, before it is
sent again: one of them may be delivered again"""


class NotOver(Exception):
    """A message waits, or runs, or it is not known."""


class Mender(Background):
    """Looks at the jobs of a sender."""

    def __init__(self, sender: Sender, history: History) -> None:
        super().__init__("mender")
        self._sender = sender
        self._history = history
        self._since: dict[tuple[int, frozenset[str]], float] = {}

    def work(self) -> None:
        while not self.over.wait(LOOK_SECONDS):
            self._mend()

    def _mend(self) -> None:
        from tests.chaos_tasks.rows.models import Job

        close_old_connections()
        open_rows = Job._default_manager.exclude(status__in=("done", "failed"))
        for job, status, fence in open_rows.values_list("pk", "status", "lock_fence"):
            units = self._sender.units(job)
            try:
                failed = dict(filter(None, map(_failure, units)))
            except NotOver:
                continue
            if not failed:
                continue
            since = self._since.setdefault((job, frozenset(failed)), now())
            no_room = any(NO_ROOM in error for error in failed.values())
            if now() < since + (ROOM_SECONDS if no_room else PATIENT_SECONDS):
                continue
            if status == "running" and not _is_lost(job):
                continue
            again = next(each for unit in units for each in unit.messages if each.job == job)
            again = replace(again, id=str(uuid.uuid4()))
            says = {"after": failed, "status": status, "fence": fence}
            self._history.write("sent again", call=again.id, name=str(job), **says)
            # With the same id until it is known to be sent: a message that is unique may have
            # reserved the queue already.
            while not self._sender.send(Unit((again,), duplicate=True)):
                if self.over.wait(LOOK_SECONDS):
                    return


def _failure(unit: Unit) -> tuple[str, str] | None:
    """The message of a unit that has failed, with which a chain ends, and its error; None if none
    has. Raises `NotOver`."""
    for message in unit.messages:
        result = app.AsyncResult(message.id)
        try:
            state, error = result.state, str(result.result)
        except Exception as silent:
            raise NotOver from silent  # The Redis of the results restarts.
        if state == states.FAILURE:
            return message.id, error
        if state != states.SUCCESS:
            raise NotOver
    return None


def _is_lost(job: int) -> bool:
    """Whether the doctor takes the row for lost work."""
    try:
        return any(
            problem.kind == "lost work" and problem.pk == job
            for same_rows in works_by_rows()
            for problem in lost_rows(same_rows, [job])
        )
    except StoreUnavailable:
        return False
