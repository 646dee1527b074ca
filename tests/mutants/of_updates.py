"""Mutants of the UPDATEs whose SQL is kept."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutants.mutant import Mutant

__all__ = ["OF_UPDATES"]

GUARD = "django_tasklock/guards.py"
ROWS = "django_tasklock/row_updates.py"
KEPT = "django_tasklock/_compat/django_updates.py"
ON_KEYS = "tests/integration/test_guard_keys.py"

OF_UPDATES: Sequence[Mutant] = (
    Mutant(
        "UPDATE of a call without a fence for one with a fence", ROWS,
        "type(pk), fence is None)", "type(pk))",
        [ON_KEYS, "-k", "with_and_without_a_fence"],
    ),
    Mutant(
        "UPDATE of a claim for a finish", ROWS,
        "key = (verb, using,", "key = (using,",
        [ON_KEYS, "-k", "test_integers and default"],
    ),
    Mutant(
        "UPDATE for keys of another type", ROWS,
        "connections[using].vendor, type(pk), fence", "connections[using].vendor, fence",
        [ON_KEYS, "-k", "of_several_types"],
    ),
    Mutant(
        "UPDATE for another database", ROWS,
        "key = (verb, using, connections[using].vendor, type(pk)", "key = (verb, type(pk)",
        [ON_KEYS, "-k", "of_two_databases"],
    ),
    Mutant(
        "UPDATE with a text that the field would have tidied", KEPT,
        '(" K\\u017f k-1234567891 ", " K\\u017f k-1987654321 ")',
        '("k-1234567891", "k-1987654321")',
        [ON_KEYS, "-k", "tidies"],
    ),
    Mutant(
        "UPDATE without the compare of a fence that is too large for its column", KEPT,
        "PLAIN_FENCES = (1_111_111_111_111_111, 222)",
        "PLAIN_FENCES = (1_111_111_111_111_111, 1_222_222_222_222_222)",
        [ON_KEYS, "-k", "cannot_hold_every_fence"],
    ),
    Mutant(
        "UPDATE with an integer that no column has", KEPT,
        "return type(pk) is not int or pk in PLAIN_INTEGERS", "return True",
        [ON_KEYS, "-k", "no_row_can_have"],
    ),
    Mutant(
        "UPDATE past a manager of the project's own", KEPT,
        "return not model._meta.parents and type(model._base_manager) is Manager",
        "return not model._meta.parents",
        [ON_KEYS, "-k", "base_manager"],
    ),
    Mutant(
        "UPDATE that keeps what a filter meant", GUARD,
        "is_steady = self.filter is None and self.exclude is None", "is_steady = True",
        [ON_KEYS, "-k", "means_what_it_means_now"],
    ),
    Mutant(
        "claim without a lock that takes the row of another run", GUARD,
        "rows = self.rows().filter(Q(pk=pk) & self._fresh())",
        "rows = self.rows().filter(Q(pk=pk) & (self._fresh() | Q((self.field, self.to))))",
        ["tests/unit/test_guards.py", "-k", "ClaimAlone"],
    ),
    Mutant(
        "claim without a lock that sets the fence back", GUARD,
        "rows, changes[self.fence_field] = rows.filter(unchanged), fence",
        "changes[self.fence_field] = fence",
        ["tests/unit/test_guards.py", "-k", "ClaimAlone"],
    ),
)  # fmt: skip
