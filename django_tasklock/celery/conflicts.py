"""What a call does when another has its lock: the values of ``on_conflict``, a class each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from .._engine.history import reason_of
from .._values.lock_info import LockInfo
from .._values.signatures import taken_by
from ..exceptions import LockNotAcquired
from ..operators.logs import log_run_beside
from .debounce import recallable
from .note import RowTaken, Skip
from .one_run import Coalesce, Join
from .requeue import wait_for_lock
from .run import Conflict, Run


class Skipped(Conflict):
    """The call returns the marker of a skipped call."""

    outcome, skips = "be skipped", True

    def answer(self, run: Run, holder: LockInfo) -> NoReturn:
        raise Skip(reason_of(holder), holder.owner)


class Raised(Conflict):
    """The call fails."""

    outcome = "be ended by LockNotAcquired"

    def answer(self, run: Run, holder: LockInfo) -> NoReturn:
        raise LockNotAcquired(run.message.name, holder)


class Retried(Raised):
    """The message goes back to its queue, for ``lock_retry_for`` seconds."""

    outcome, waits = "be requeued, to try again later", True

    def answer(self, run: Run, holder: LockInfo) -> NoReturn:
        if run.message.queued:
            error = None if self.replaces else LockNotAcquired(run.message.name, holder)
            wait_for_lock(run.message, holder, error)
        super().answer(run, holder)


class Replaced(Retried):
    """The message waits for the end of the run that has the lock, which is asked to end if it was
    sent earlier."""

    outcome, skips, replaces = "be requeued, and replace an earlier call that runs", True, True
    body = staticmethod(recallable)


class RunBeside(Conflict):
    """The call runs without the lock, to watch what the lock would do."""

    outcome = "run all the same, and report it"

    def answer(self, run: Run, holder: LockInfo) -> Any:
        task, message = run.task, run.message
        names = message.name, task.lock_store, holder, str(task.name), message.id
        try:
            return run.perform(None, partial(log_run_beside, *names))
        except RowTaken:
            if message.queued:
                wait_for_lock(message, holder)
            raise Skip(reason_of(holder), holder.owner) from None


class Decided(Conflict):
    """A function of the project's says at each refusal what becomes of the call."""

    def __init__(self, decide: Callable[..., str]) -> None:
        self.decide = decide
        self.outcome = f"do what {getattr(decide, '__qualname__', decide)} says"

    def chosen(self, run: Run, holder: LockInfo) -> Conflict:
        message = run.message
        given = run.task.naming.arguments_of(message.args, message.kwargs)
        answer = self.decide(holder, **taken_by(self.decide, given))
        if answer not in DECISIONS:
            known = ", ".join(map(repr, DECISIONS))
            raise ValueError(f"on_conflict must return one of {known}, not {answer!r}")
        return CONFLICTS[answer]


# What a function may return.
DECISIONS = ("skip", "retry", "raise", "run")
# By the values of ``on_conflict``: there is no other list of them.
CONFLICTS: dict[str, Conflict] = {
    "skip": Skipped(), "retry": Retried(), "raise": Raised(), "coalesce": Coalesce(),
    "replace": Replaced(), "join": Join(), "run": RunBeside(),
}  # fmt: skip
