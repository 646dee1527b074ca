"""The guard: two conditional UPDATEs, which claim a row for a run and finish it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from django.apps import apps
from django.core.exceptions import FieldDoesNotExist, FieldError
from django.db import InterfaceError, OperationalError, router
from django.db.models import DateTimeField, Model, Q, QuerySet
from django.utils.functional import cached_property

from ._compat.django import can_hold, close_if_cut, is_in_atomic, tables_of
from ._values.signatures import signature_of
from ._values.tokens import new_token
from ._values.words import logger, printable
from .exceptions import InvalidLockConfig, StatusConflict

__all__ = ["GuardedRow", "StatusGuard"]

# How a database that is away answers. It may have carried out what it was told.
AWAY = (InterfaceError, OperationalError)
# Microseconds since 1970, until the year 2286.
LARGEST_FENCE = 10**16 - 1


def mark_of(task_id: Any) -> int:
    """Return the fence of a run without the lock: a negative number, which no lease has.

    It is the same for all runs of one message; without a ``task_id`` it is random.
    """
    return -1 - int(sha256(ascii(task_id or new_token()).encode()).hexdigest()[:12], 16)


class StatusGuard:
    """Guards the work on one row by the row's own status.

    A run claims the row: its status becomes ``to``. After the run it is ``done`` or ``failed``.

    Args:
        model: a model or its label.
        pk: the name of the task's argument that holds the primary key.
        field: the name of the status field.
        source: a status, or several, in which there is work to do. A row that is worked on again
            and again has ``done`` among them, and goes back to the first of the others.
        to: the status of a row that is being worked on.
        done: the status after a run that succeeded.
        failed: the status after a run that failed. None: the first of ``source``, as after a run
            that is to be repeated.
        filter: a `Q` that the row must match to be claimed.
        exclude: a `Q` that the row must not match.
        fence_field: the name of a ``BigIntegerField`` that may be null. It keeps the fence of the
            last claim. A lease with an earlier fence cannot claim or finish the row.
        since_field: the name of a ``DateTimeField`` that says since when a row in ``source``
            waits, such as "uploaded_at". ``locks doctor --source-older`` looks at it.

    A run that holds the lock is the only run. So it may claim a row that is in ``to`` already,
    which a dead run has left behind; ``filter`` and ``exclude`` do not apply to such a row. But a
    run without the lock may be at work beside it: the fence of its row says so, and the row is left
    to it.

    Raises `InvalidLockConfig` for statuses that contradict each other, and for arguments of a wrong
    type. The model is looked up on first use.
    """

    def __init__(
        self,
        model: str | type[Model],
        *,
        pk: str = "pk",
        field: str = "status",
        source: Any,
        to: Any,
        done: Any,
        failed: Any = None,
        filter: Q | None = None,
        exclude: Q | None = None,
        fence_field: str | None = None,
        since_field: str | None = None,
    ) -> None:
        self._model, self.label = model, _label_of(model)
        self.pk, self.field, self.fence_field = pk, field, fence_field
        self.since_field = since_field
        is_one = isinstance(source, str) or not isinstance(source, Iterable)
        self.source = [source] if is_one else list(source)
        self.to, self.done, self.failed = to, done, failed
        self.filter, self.exclude = filter, exclude
        # The status of a row that waits for a run.
        self._waiting = next((each for each in self.source if each != done), done)
        if not self.source:
            raise InvalidLockConfig("a guard needs at least one source status")
        if self.to in (*self.source, self.done):
            raise InvalidLockConfig(f"to={self.to!r} must not be in source or done: {self!r}")
        if self.failed is not None and self.failed in (self.to, self.done):
            raise InvalidLockConfig(f"failed={self.failed!r} must not be to or done: {self!r}")
        for what, given in (("filter", self.filter), ("exclude", self.exclude)):
            if not isinstance(given, Q | None):
                raise InvalidLockConfig(f"a guard's {what} must be a Q or None, not {given!r}")

    def __repr__(self) -> str:
        _, *names = signature_of(StatusGuard).parameters  # All but the model.
        values = {name: getattr(self, name) for name in names}
        given = (f"{name}={value!r}" for name, value in values.items() if value is not None)
        return f"StatusGuard({self.label!r}, {', '.join(given)})"

    @cached_property
    def model(self) -> type[Model]:
        """The model. Raises `InvalidLockConfig` if it, or one of the fields, does not exist; and if
        the columns that a claim compares are not all in one table. Of several, Django first reads
        the rows and then updates what it has read, and two runs could claim one row."""
        given = self._model
        try:
            model: type[Model] = apps.get_model(given) if isinstance(given, str) else given
            for name in filter(None, (self.field, self.fence_field, self.since_field)):
                owner: Any = model._meta.get_field(name).model
                if owner._meta.concrete_model is not model._meta.concrete_model:
                    where = f"its field {name} is in the table of {owner._meta.label}"
                    raise ValueError(f"{where}. Guard that model: the rows have the same keys")
            if tables_of(QuerySet(model).filter(self._fresh)) > 1:
                mend = "Copy what it asks for to a field of the row, or ask in the task's body"
                raise ValueError(f"its filter or exclude joins another table. {mend}")
        except (LookupError, ValueError, FieldDoesNotExist, FieldError) as error:
            raise InvalidLockConfig(f"the guard of {self.label}: {error}") from error
        return model

    def field_trouble(self) -> str:
        """Return which field cannot hold what the guard needs there, as a sentence; "" if all can.
        Raises `InvalidLockConfig` as `model`."""
        model = self.model
        field: Any = model._meta.get_field(self.field)
        where, known = f"the field {self.label}.{self.field}", dict(field.flatchoices)
        longest = getattr(field, "max_length", None)
        for status in (*self.source, self.to, self.done, self.failed):
            if known and status is not None and status not in known:
                return f"{where} has no choice {status!r}. Correct the guard, or add the choice."
            if longest and isinstance(status, str) and len(status) > longest:
                return f"{where} cannot hold {status!r}: its max_length is {longest}."
        since: Any = self.since_field and model._meta.get_field(self.since_field)
        if since and not isinstance(since, DateTimeField):
            return f"the field {self.label}.{self.since_field} (since_field) is no DateTimeField."
        if self.fence_field is None:
            return ""
        field = model._meta.get_field(self.fence_field)
        where = f"the fence field {self.label}.{self.fence_field}"
        use = f"Use BigIntegerField(null=True), not {type(field).__name__}"
        if not can_hold(LARGEST_FENCE, field):
            return f"{where} cannot hold a fence, an integer of 16 digits. {use}."
        if not field.null and not field.has_default():
            return f"{where} must allow null: it is empty before the first run. {use}()."
        return ""

    @property
    def holds_marks(self) -> bool:
        """Whether the row shows that a run without the lock works on it: see `mark_of`."""
        name = self.fence_field
        return name is not None and can_hold(-LARGEST_FENCE, self.model._meta.get_field(name))

    def pk_of(self, arguments: Mapping[str, Any]) -> Any:
        """Return the primary key from a call's ``arguments``, a mapping of names to values.

        Raises `InvalidLockConfig` if the argument is missing.
        """
        if self.pk not in arguments:
            what = f"the call has no argument {self.pk!r}, and the guard of {self.label} takes the"
            raise InvalidLockConfig(f"{what} primary key from it (its option pk)")
        return arguments[self.pk]

    def rows(self) -> QuerySet[Model]:
        """Return all rows of the model, on the database that it is written to."""
        return QuerySet(self.model, using=router.db_for_write(self.model))

    def waiting(self) -> QuerySet[Model]:
        """Return the rows in ``source`` that wait for their first run. One that is done, or has
        failed, waits only if it is called again."""
        over = Q((f"{self.field}__in", [self.done, self.failed]))
        rows: QuerySet[Model] = self.rows().filter(self._fresh & ~over)
        return rows

    def claim(self, pk: Any, fence: int | None = None) -> bool:
        """Take the row for a run that holds the lock, with one UPDATE.

        ``fence``: that of the run's lease; None where its store has none. Returns False if there
        is no work: the row does not exist, is in another status, is excluded, has a later fence, or
        has that of a run without the lock. Raises `RuntimeError` inside ``atomic()``.
        """
        if self.fence_field is None or fence is None:
            return self._update(self.rows().filter(self._work, pk=pk), {self.field: self.to})
        no_later = (f"{self.fence_field}__isnull", True), (f"{self.fence_field}__lte", fence)
        rows = self.rows().filter(self._work_by_fence, Q(*no_later, _connector=Q.OR), pk=pk)
        return self._update(rows, {self.field: self.to, self.fence_field: fence})

    def claim_again(self, pk: Any, fence: int | None, mark: int) -> bool:
        """Take the row that a run without the lock has claimed with this ``mark``: for a redelivery
        of its message, which holds the lock. That run has died, as far as the broker knows.

        Returns False if no such run has claimed it, and where there is no ``fence``: `claim` has
        asked for the status alone. Errors: as for `claim`.
        """
        if not (self.fence_field and fence):
            return False
        rows = self.rows().filter(**self._own(pk, mark, self.to))
        return self._update(rows, {self.fence_field: fence}, self._own(pk, fence, self.to))

    def claim_alone(self, pk: Any, mark: int) -> bool:
        """Take the row for a run without a lock, from ``source`` only. Its fence is ``mark``, that
        of `mark_of`, and no other message's run takes the row before this one has left it.

        Without the lock it is not known whether the run that left the row in ``to`` still lives.
        Returns False if there is no work; and without a fence field, if it is not known whether
        this run has taken the row. Raises `RuntimeError` inside ``atomic()``.
        """
        fence = {self.fence_field: mark} if self.fence_field else {}
        changed = self._own(pk, mark, self.to) if fence else None
        rows = self.rows().filter(self._fresh, pk=pk)
        return self._update(rows, {self.field: self.to, **fence}, changed)

    def finish(self, pk: Any, fence: int | None = None) -> None:
        """Give the row the status ``done``.

        ``fence``: the one with which the row was claimed; None: it is not compared. Raises
        `StatusConflict` if the row is no longer this run's: its status is not ``to``, or its fence
        is not ``fence``. Raises `RuntimeError` inside ``atomic()``.
        """
        if not self._leave(pk, fence, self.done):
            raise StatusConflict(self.label, pk)

    def fail(self, pk: Any, fence: int | None = None) -> bool:
        """Give the row the status ``failed``, or that of `reopen` where that is None.

        ``fence``: as for `finish`. Returns False, and changes nothing, if the row is no longer this
        run's. Raises `RuntimeError` inside ``atomic()``.
        """
        return self._leave(pk, fence, self._waiting if self.failed is None else self.failed)

    def reopen(self, pk: Any, fence: int | None = None) -> bool:
        """Give the row its first source status again, so that another run can claim it.

        That is the first that is not ``done``, if there is another one. ``fence``: as for `finish`.
        Returns False, and changes nothing, if the row is no longer this run's. Raises
        `RuntimeError` inside ``atomic()``.
        """
        return self._leave(pk, fence, self._waiting)

    def has(self, pk: Any, status: Any) -> bool:
        """Return whether the row is in this status."""
        return bool(self.rows().filter(Q((self.field, status)), pk=pk).exists())

    def refuse_atomic(self) -> None:
        """Raise `RuntimeError` inside ``atomic()``: no other connection would see a claim before
        the commit, and a rollback would undo it although the work was done."""
        if is_in_atomic(router.db_for_write(self.model)):
            why = "its claim must be seen by other workers at once, and must not be rolled back"
            what = f"the guard of {self.label} was used inside atomic(): {why}"
            raise RuntimeError(f"{what}. Move atomic() into the task, or call it in on_commit().")

    @cached_property
    def _fresh(self) -> Q:
        fresh = Q((f"{self.field}__in", self.source))
        if self.filter is not None:
            fresh &= self.filter
        if self.exclude is not None:
            fresh &= ~self.exclude
        return fresh

    # What a run with the lock may claim: a claim that is repeated finds its own status and fence,
    # and takes the row again.

    @cached_property
    def _work(self) -> Q:
        if self.filter is None and self.exclude is None:
            return Q((f"{self.field}__in", [*self.source, self.to]))
        return self._fresh | Q((self.field, self.to))

    @cached_property
    def _work_by_fence(self) -> Q:
        return self._fresh | (Q((self.field, self.to)) & ~Q((f"{self.fence_field}__lt", 0)))

    def _own(self, pk: Any, fence: int | None, status: Any) -> dict[str, Any]:
        """Return what the row of a run with this fence has, in a status."""
        own = {"pk": pk, self.field: status}
        if self.fence_field and fence is not None:
            own[self.fence_field] = fence
        return own

    def _leave(self, pk: Any, fence: int | None, status: Any) -> bool:
        rows = self.rows().filter(**self._own(pk, fence, self.to))
        return self._update(rows, {self.field: status}, self._own(pk, fence, status))

    def _update(
        self, rows: QuerySet[Model], changes: Mapping[str, Any], changed: Any = None
    ) -> bool:
        """Change the row, and return whether there was one.

        A connection that was cut, before the UPDATE or in it, is replaced once. The UPDATE may
        have been carried out all the same: then the row is as ``changed`` says.
        """
        self.refuse_atomic()
        try:
            return bool(rows.update(**changes))
        except AWAY:
            if not close_if_cut(rows.db):
                raise
        return bool(rows.update(**changes) or (changed and self.rows().filter(**changed).exists()))


class GuardedRow:
    """The row ``pk`` of a ``guard``, on which one run works."""

    def __init__(self, guard: Any, pk: Any, task_id: Any = None, who: object = "a run") -> None:
        self.guard, self.pk, self.who = guard, pk, who
        self._task_id = task_id
        # The fence of the row.
        self.fence: int | None = None

    def __str__(self) -> str:
        return printable(f"{self.guard.label} {self.pk}")

    @cached_property
    def mark(self) -> int:
        """The fence of the row in a run without the lock."""
        return mark_of(self._task_id)

    @contextmanager
    def claimed(self, lease: Any) -> Iterator[bool]:
        """Claim the row for the block, and finish it. Yields False if it cannot be claimed.

        ``lease``: that of the run; None for a run without the lock. If the block raises, the row is
        failed, or open again for the run that is to come. Raises `StatusConflict` if another run
        has changed the row meanwhile, and `LeaseLost` if the lease was lost and the row cannot show
        whether the result counts.
        """
        self.guard.refuse_atomic()
        claimed: Any = None  # Not known.
        if self.guard.fence_field:
            self.fence = self.mark if lease is None else lease.fence
        try:
            claimed = self.claim(lease)
            if not claimed and lease is not None:
                lease.assert_held()  # If it is lost, a redelivery may have the row.
            if not claimed:
                self.skip(lease)
            yield claimed
            if claimed and lease is not None and self.fence is None:
                # Without a fence the row cannot distinguish this run from the next holder's.
                lease.assert_held()
            if claimed:
                self.finish(lease)
        except GeneratorExit:
            raise  # Nobody waits for the end of a coroutine that was closed.
        except BaseException as error:
            # Not known: without the lock the row may be that of the lock's holder, and a database
            # that is away would only be waited for once more. The next run can claim it as it is.
            unknown = claimed is None and (lease is None or isinstance(error, AWAY))
            if not unknown and claimed is not False:
                self.leave(lease, error)
            raise

    def claim(self, lease: Any) -> bool:
        """Take the row for a run with this lease, or without the lock. Returns False if there is no
        work. Raises what the database raises."""
        if lease is None:
            return bool(self.guard.claim_alone(self.pk, self.mark))
        return bool(self.guard.claim(self.pk, self.fence))

    def skip(self, lease: Any) -> None:
        """Say why there is no work on the row. Raises what the database raises."""
        of = self.who, self, lease and lease.name
        if self.guard.rows().filter(pk=self.pk).exists():
            logger.info("skipped %s: its row %s is not in a state to be worked on, lock %s", *of)
        else:
            logger.warning(
                "skipped %s: there is no row %s, lock %s. Was it sent before the commit? Use "
                "delay_on_commit() or transaction.on_commit()", *of,
            )  # fmt: skip

    def finish(self, lease: Any) -> None:
        """Give the row the status of a run that succeeded."""
        try:
            self.guard.finish(self.pk, self.fence)
        except StatusConflict:
            if lease is not None and not lease.detached:
                lease.assert_held()  # If it is lost, that is why.
            raise

    def leave(self, lease: Any, error: BaseException) -> None:
        """Give the row of a run that ends with an error its status. Raises nothing."""
        if self.fence is None and lease is not None and not lease.lasts:
            return  # It may be another run's. The next one can claim it as it is.
        guard, again = self.guard, self.comes_again(lease, error)
        try:
            (guard.reopen if again else guard.fail)(self.pk, self.fence)
        except Exception:
            # The next run can claim the row as it is. The run's own error is reported.
            logger.exception(
                "could not change the row %s of %s after an error", self.pk, guard.label
            )

    def comes_again(self, lease: Any, error: BaseException) -> bool:
        """Return whether a run that ends with this error is repeated. What is no `Exception`
        interrupts it from outside, as the end of the worker does."""
        return not isinstance(error, Exception)


def _label_of(model: Any) -> str:
    if isinstance(model, type) and issubclass(model, Model):
        return model._meta.label
    if isinstance(model, str) and model.count(".") == 1:
        return model
    raise InvalidLockConfig(f'a guard\'s model must be a model or "app.Model", not {model!r}')
