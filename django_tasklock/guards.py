"""The guard: two conditional UPDATEs that say whether there is still work, and whose it was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.apps import apps
from django.core.exceptions import FieldDoesNotExist
from django.db import connections, router, transaction
from django.db.models import Manager, Model, Q, QuerySet

from .exceptions import InvalidLockConfig, StatusConflict

__all__ = ["StatusGuard"]

LARGEST_FENCE = 10**16 - 1
"""microseconds since 1970, until the year 2286"""


class StatusGuard:
    """Guards the work on one row by the row's own status.

    ``model`` is a model or its label; ``pk`` the name of the task's argument that holds the
    primary key; ``field`` the status field. A run may claim a row whose status is one of
    ``source``, and which ``filter`` and ``exclude`` (`Q` objects) allow; the row then has the
    status ``to``, and when the run is over ``done`` or ``failed``. Where ``failed`` is None a
    failed run's row goes back to the first of ``source``, as it does when the run is to be
    repeated. ``fence_field``, an integer field that may be null, keeps the fence of the last
    lease that claimed the row, and refuses an earlier one.

    Holding the lock proves that nobody else runs: a row that is in ``to`` already may be
    claimed again, whatever ``filter`` and ``exclude`` say of what the dead run left behind.

    Raises `InvalidLockConfig` for what cannot be meant; the model is looked up on first use.
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

    def _check(self) -> None:
        model: Any = self._model
        if isinstance(model, str):
            if model.count(".") != 1:
                raise InvalidLockConfig(f'a label is "app.Model", not {model!r}')
        elif not (isinstance(model, type) and issubclass(model, Model)):
            raise InvalidLockConfig(f"a guard's model is a model or its label: {model!r}")
        if not self.source:
            raise InvalidLockConfig("a guard needs at least one source status")
        if self.to in self.source or self.done in (*self.source, self.to):
            raise InvalidLockConfig(
                "a guard's source, to and done are different statuses: "
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
        """What is wrong with the fence field, as a sentence; "" if nothing is."""
        if self.fence_field is None:
            return ""
        field: Any = self.model._meta.get_field(self.fence_field)
        where = f"the fence field {self.label}.{self.fence_field}"
        use = f"Use BigIntegerField(null=True), not {type(field).__name__}"
        if not _holds_fences(field, connections[router.db_for_write(self.model)]):
            return f"{where} cannot hold a fence, an integer of 16 digits. {use}."
        if not field.null and not field.has_default():
            return f"{where} cannot be empty, as it is before the first run. {use}()."
        return ""

    def pk_of(self, arguments: Mapping[str, Any]) -> Any:
        """The primary key among a call's arguments. Raises `InvalidLockConfig`."""
        try:
            return arguments[self.pk]
        except KeyError:
            raise InvalidLockConfig(
                f"the guard of {self.label} takes its key from the argument {self.pk!r}, "
                "and there is none"
            ) from None

    def rows(self) -> QuerySet[Model]:
        """All rows of the model, on the database that is written to."""
        manager: Manager[Model] = self.model._base_manager
        return manager.using(router.db_for_write(self.model))

    def claim(self, pk: Any, fence: int | None = None) -> bool:
        """Take the row for a run that holds the lock: one UPDATE. False: there is no work.

        Raises `RuntimeError` inside ``atomic()``.
        """
        rows = self.rows().filter(Q(pk=pk) & (self._fresh() | Q((self.field, self.to))))
        changes: dict[str, Any] = {self.field: self.to}
        if self.fence_field and fence is not None:
            rows = rows.filter(
                Q((f"{self.fence_field}__isnull", True)) | Q((f"{self.fence_field}__lt", fence))
            )
            changes[self.fence_field] = fence
        return self._update(rows, changes) > 0

    def claim_alone(self, pk: Any) -> tuple[bool, int | None]:
        """Take the row for a run without a lock: only from ``source``, since nothing says
        whether the run that left it in ``to`` still lives.

        Returns whether it was taken, and the fence to finish it with, one above the row's last:
        whoever claims it under the lock meanwhile writes a greater one. Raises `RuntimeError`
        inside ``atomic()``.
        """
        rows = self.rows().filter(Q(pk=pk) & self._fresh())
        if not self.fence_field:
            return self._update(rows, {self.field: self.to}) > 0, None
        last = rows.values_list(self.fence_field, flat=True).first()
        unchanged = Q((f"{self.fence_field}__isnull", True))
        if last is not None:
            unchanged = Q((self.fence_field, last))
        fence = (last or 0) + 1
        changes = {self.field: self.to, self.fence_field: fence}
        return self._update(rows.filter(unchanged), changes) > 0, fence

    def is_claimed(self, pk: Any) -> bool:
        """Whether the row is in the status ``to``."""
        return bool(self.rows().filter(Q(pk=pk) & Q((self.field, self.to))).exists())

    def finish(self, pk: Any, fence: int | None = None) -> None:
        """Mark the row done. Raises `StatusConflict` if it is no longer this run's."""
        if not self._leave(pk, fence, self.done):
            raise StatusConflict(self.label, pk)

    def fail(self, pk: Any, fence: int | None = None) -> bool:
        """Mark the row failed. False: it is no longer this run's, and was not changed."""
        return self._leave(pk, fence, self.source[0] if self.failed is None else self.failed)

    def put_back(self, pk: Any, fence: int | None = None) -> bool:
        """Make the row wait for work again. False: it is no longer this run's."""
        return self._leave(pk, fence, self.source[0])

    def is_done(self, pk: Any) -> bool:
        """Whether the row is in the status ``done``."""
        return bool(self.rows().filter(Q(pk=pk) & Q((self.field, self.done))).exists())

    def _fresh(self) -> Q:
        fresh = Q((f"{self.field}__in", self.source))
        if self.filter is not None:
            fresh &= self.filter
        if self.exclude is not None:
            fresh &= ~self.exclude
        return fresh

    def _leave(self, pk: Any, fence: int | None, status: Any) -> bool:
        rows = self.rows().filter(Q(pk=pk) & Q((self.field, self.to)))
        if self.fence_field and fence is not None:
            rows = rows.filter(Q((self.fence_field, fence)))
        return self._update(rows, {self.field: status}) > 0

    def _update(self, rows: QuerySet[Model], changes: dict[str, Any]) -> int:
        # Inside somebody's atomic() no other connection would see the change before the commit,
        # and a rollback would undo it though the work was done. A test's own transaction counts
        # for nothing, as it does for durable blocks.
        blocks = transaction.get_connection(rows.db).atomic_blocks
        if blocks and not blocks[-1]._from_testcase:
            raise RuntimeError(
                f"the guard of {self.label} was used inside atomic(): its claim must be seen by "
                "other workers at once, and must not be rolled back. Move atomic() into the task."
            )
        return rows.update(**changes)


def _listed(source: Any) -> list[Any]:
    if isinstance(source, str) or not isinstance(source, Iterable):
        return [source]
    return list(source)


def _holds_fences(field: Any, connection: Any) -> bool:
    if not getattr(field, "concrete", False) or field.is_relation:
        return False
    kind = field.get_internal_type()
    if kind == "DecimalField":
        digits = field.max_digits
        return digits is None or digits - (field.decimal_places or 0) >= len(str(LARGEST_FENCE))
    usual: Any = connection.data_types.get(kind)
    if usual is not None:
        usual = usual(vars(field)) if callable(usual) else usual % vars(field)
    if field.db_type(connection) != usual:
        return True  # A type of its own, of which only the database knows what it holds.
    # Not with the module: tasks are imported before Django's apps are, where it would be a circle.
    from django.db.backends.base.operations import BaseDatabaseOperations

    # What every database holds: SQLite holds any integer in any column, and production may not.
    _, most = BaseDatabaseOperations.integer_field_ranges.get(kind, (0, 0))
    return bool(most >= LARGEST_FENCE)
