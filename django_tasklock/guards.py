"""The guard: two conditional UPDATEs, which claim a row for a run and finish it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.apps import apps
from django.core.exceptions import FieldDoesNotExist
from django.db import connections, router
from django.db.models import Manager, Model, Q, QuerySet

from ._compat.django_database import can_hold
from ._compat.django_updates import Made, Make
from .exceptions import InvalidLockConfig, StatusConflict
from .row_updates import RowUpdates

__all__ = ["StatusGuard"]

LARGEST_FENCE = 10**16 - 1
"""microseconds since 1970, until the year 2286"""


class StatusGuard:
    """Guards the work on one row by the row's own status.

    ``model``: a model or its label. ``pk``: the name of the task's argument that holds the primary
    key. ``field``: the name of the status field. A run may claim a row whose status is one of
    ``source``, and which ``filter`` and ``exclude`` (`Q` objects) allow. The row then has the
    status ``to``, and after the run ``done`` or ``failed``. Where ``failed`` is None, the row of a
    failed run has the first of ``source`` again, as it has when the run is to be repeated. A row
    that is worked on again and again has ``done`` among its ``source``: a row goes back to the
    first of the others then.
    ``fence_field``: the name of an integer field that may be null. It keeps the fence of the last
    lease that claimed the row, and a lease with an earlier fence cannot claim or finish the row.

    A run that holds the lock is the only run. So it may claim a row that is in ``to`` already,
    which a dead run has left behind; ``filter`` and ``exclude`` do not apply to such a row.

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
    ) -> None:
        self._model = model
        self._fields_exist = False
        self.pk = pk
        self.field = field
        self.source = _listed(source)
        self.to = to
        self.done = done
        self.failed = failed
        self.filter = filter
        self.exclude = exclude
        self.fence_field = fence_field
        self._check()
        self._updates = RowUpdates(self.label, self.fence_field)

    def _check(self) -> None:
        model: Any = self._model
        if isinstance(model, str):
            if model.count(".") != 1:
                raise InvalidLockConfig(f'a label is "app.Model", not {model!r}')
        elif not (isinstance(model, type) and issubclass(model, Model)):
            raise InvalidLockConfig(f"a guard's model is a model or its label: {model!r}")
        if not self.source:
            raise InvalidLockConfig("a guard needs at least one source status")
        if self.to in (*self.source, self.done):
            raise InvalidLockConfig(
                "a guard's to is a status of its own, neither in source nor done: "
                f"source={self.source!r}, to={self.to!r}, done={self.done!r}"
            )
        if self.failed is not None and self.failed in (self.to, self.done):
            raise InvalidLockConfig(f"failed={self.failed!r} is the status of another outcome")
        for what in ("filter", "exclude"):
            if not isinstance(getattr(self, what), Q | None):
                raise InvalidLockConfig(f"a guard's {what} is a Q object or None")

    def __repr__(self) -> str:
        return f"<StatusGuard {self.label}.{self.field}: {self.source} -> {self.to} -> {self.done}>"

    @property
    def label(self) -> str:
        """The model's label."""
        return self._model if isinstance(self._model, str) else self._model._meta.label

    @property
    def model(self) -> type[Model]:
        """The model. Raises `InvalidLockConfig` if it, or one of the fields, does not exist."""
        if isinstance(self._model, str):
            try:
                self._model = apps.get_model(self._model)
            except (LookupError, ValueError) as error:
                raise InvalidLockConfig(f"a guard's model: {error}") from error
        if not self._fields_exist:
            for name in filter(None, (self.field, self.fence_field)):
                try:
                    self._model._meta.get_field(name)
                except FieldDoesNotExist as error:
                    raise InvalidLockConfig(f"a guard's field: {error}") from error
            self._fields_exist = True
        return self._model

    def check_fields(self) -> None:
        """Raise `InvalidLockConfig` if the model, its status or its fence field does not exist."""
        _ = self.model

    def fence_trouble(self) -> str:
        """Return what is wrong with the fence field, as a sentence; "" if nothing is."""
        if self.fence_field is None:
            return ""
        field: Any = self.model._meta.get_field(self.fence_field)
        where = f"the fence field {self.label}.{self.fence_field}"
        use = f"Use BigIntegerField(null=True), not {type(field).__name__}"
        if not can_hold(LARGEST_FENCE, field, connections[router.db_for_write(self.model)]):
            return f"{where} cannot hold a fence, an integer of 16 digits. {use}."
        if not field.null and not field.has_default():
            return f"{where} cannot be empty, as it is before the first run. {use}()."
        return ""

    def pk_of(self, arguments: Mapping[str, Any]) -> Any:
        """Return the primary key from a call's ``arguments``, a mapping of names to values.

        Raises `InvalidLockConfig` if the argument is missing.
        """
        try:
            return arguments[self.pk]
        except KeyError:
            raise InvalidLockConfig(
                f"the guard of {self.label} takes its key from the argument {self.pk!r}, "
                "which the call does not have"
            ) from None

    def rows(self) -> QuerySet[Model]:
        """Return all rows of the model, on the database that it is written to."""
        manager: Manager[Model] = self.model._base_manager
        return manager.using(router.db_for_write(self.model))

    def claim(self, pk: Any, fence: int | None = None) -> bool:
        """Take the row for a run that holds the lock, with one UPDATE.

        ``fence``: that of the run's lease; None where its store has none. Returns False if there
        is no work: the row does not exist, is in another status, is excluded, or has a later fence.
        Raises `RuntimeError` inside ``atomic()``.
        """
        # What a filter means may depend on the moment, as with the names of time zones.
        is_steady = self.filter is None and self.exclude is None
        return self._update("claim" if is_steady else None, self._claiming, pk, fence)

    def _claiming(self, pk: Any, fence: int | None) -> Made:
        rows = self.rows().filter(Q(pk=pk) & (self._fresh() | Q((self.field, self.to))))
        changes: dict[str, Any] = {self.field: self.to}
        if self.fence_field and fence is not None:
            rows = rows.filter(
                Q((f"{self.fence_field}__isnull", True)) | Q((f"{self.fence_field}__lt", fence))
            )
            changes[self.fence_field] = fence
        return rows, changes

    def claim_alone(self, pk: Any) -> tuple[bool, int | None]:
        """Take the row for a run without a lock, from ``source`` only.

        Without the lock it is not known whether the run that left the row in ``to`` still lives.
        Returns whether the row was taken, and the fence to finish it with: one more than the row's
        last, so that a run with the lock has a greater one. Raises `RuntimeError` inside
        ``atomic()``.
        """
        rows = self.rows().filter(Q(pk=pk) & self._fresh())
        changes: dict[str, Any] = {self.field: self.to}
        fence = None
        if self.fence_field:
            last = rows.values_list(self.fence_field, flat=True).first()
            unchanged = Q((f"{self.fence_field}__isnull", True))
            if last is not None:
                unchanged = Q((self.fence_field, last))
            fence = (last or 0) + 1
            rows, changes[self.fence_field] = rows.filter(unchanged), fence
        return self._update(None, lambda _pk, _fence: (rows, changes), pk, None, ours=False), fence

    def was_claimed_under(self, pk: Any, fence: int | None) -> bool:
        """Return whether the lease with this fence is the last that has claimed the row."""
        if not self.fence_field or fence is None:
            return False
        return bool(self.rows().filter(Q(pk=pk) & Q((self.fence_field, fence))).exists())

    def writes_with(self, other: StatusGuard) -> bool:
        """Return whether a status or a fence that this guard writes is one that ``other`` writes,
        where both have the same row."""
        if self.model._meta.concrete_model is not other.model._meta.concrete_model:
            return False
        fences = {self.fence_field, other.fence_field}
        return self.field == other.field or (len(fences) == 1 and None not in fences)

    def is_claimed(self, pk: Any) -> bool:
        """Return whether the row is in the status ``to``."""
        return bool(self.rows().filter(Q(pk=pk) & Q((self.field, self.to))).exists())

    def finish(self, pk: Any, fence: int | None = None) -> None:
        """Give the row the status ``done``.

        ``fence``: the one with which the row was claimed; None: it is not compared. Raises
        `StatusConflict` if the row is no longer this run's: its status is not ``to``, or its fence
        is not ``fence``. Raises `RuntimeError` inside ``atomic()``.
        """
        if not self._leave(pk, fence, self.done, "finish"):
            raise StatusConflict(self.label, pk)

    def fail(self, pk: Any, fence: int | None = None) -> bool:
        """Give the row the status ``failed``, or that of `reopen` where that is None.

        ``fence``: as for `finish`. Returns False, and changes nothing, if the row is no longer this
        run's. Raises `RuntimeError` inside ``atomic()``.
        """
        status = self._waiting if self.failed is None else self.failed
        return self._leave(pk, fence, status, "fail")

    def reopen(self, pk: Any, fence: int | None = None) -> bool:
        """Give the row its first source status again, so that another run can claim it.

        That is the first that is not ``done``, if there is another one. ``fence``: as for `finish`.
        Returns False, and changes nothing, if the row is no longer this run's. Raises
        `RuntimeError` inside ``atomic()``.
        """
        return self._leave(pk, fence, self._waiting, "reopen")

    def put_back(self, pk: Any, fence: int | None = None) -> bool:
        """The old name of `reopen`."""
        return self.reopen(pk, fence)

    def is_done(self, pk: Any) -> bool:
        """Return whether the row is in the status ``done``."""
        return bool(self.rows().filter(Q(pk=pk) & Q((self.field, self.done))).exists())

    @property
    def _waiting(self) -> Any:
        return next((each for each in self.source if each != self.done), self.done)

    def _fresh(self) -> Q:
        fresh = Q((f"{self.field}__in", self.source))
        if self.filter is not None:
            fresh &= self.filter
        if self.exclude is not None:
            fresh &= ~self.exclude
        return fresh

    def _leave(self, pk: Any, fence: int | None, status: Any, verb: str) -> bool:
        def leaving(pk: Any, fence: int | None) -> Made:
            ours = Q(pk=pk)
            if self.fence_field and fence is not None:
                ours &= Q((self.fence_field, fence))
            return self.rows().filter(ours & Q((self.field, self.to))), {self.field: status}

        return self._update(verb, leaving, pk, fence)

    def _update(
        self, verb: str | None, make: Make, pk: Any, fence: int | None, *, ours: bool = True
    ) -> bool:
        using = router.db_for_write(self.model)
        return self._updates.update(
            verb, using, make, pk, fence if self.fence_field else None, ours=ours
        )


def _listed(source: Any) -> list[Any]:
    if isinstance(source, str) or not isinstance(source, Iterable):
        return [source]
    return list(source)
