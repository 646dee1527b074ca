"""The arguments of a call, and the names of what it locks and reserves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from .._engine.names import ArgumentNames, NameTemplate, bound_arguments, digest_name
from .._values.arguments import checked_name, checked_slots
from .._values.signatures import signature_of

# Why a call's lock and its limits must not have one name.
SAME_NAMES = (
    "lock_name and all lock_limits must give different names: while a lock NAME is held, no permit "
    "of NAME is granted. Change one of them"
)


class Names(NamedTuple):
    """What a call locks and reserves. It travels in our header of its message, by these keys."""

    # The lock's.
    name: str
    # How many calls with that name may run at once.
    slots: int = 1
    # Of ``lock_limits``, in their order.
    limits: Sequence[str] = ()
    # Of ``unique_name``; "": the lock's.
    unique: str = ""


class Naming:
    """The arguments of each call of one task, and what it locks and reserves.

    ``template`` is the lock's name with fields in the place of all values: the same for every call.
    ``name_from`` makes the lock's name of a call's arguments. ``limits`` has both of each limit, a
    template and what makes the name.

    ``task`` is the class: a function that is its attribute would be bound to an instance. Raises
    `TypeError` or `ValueError` for a name that does not go with the body's arguments.
    """

    def __init__(self, task: Any) -> None:
        # Of the body, as an instance has it: without ``self``.
        self.signature = signature_of(object.__new__(task).run)
        self._task, self._slots = str(task.name), task.lock_slots
        parameters = self.signature.parameters.values()
        plain = all(each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters)
        self._plain = [each.name for each in parameters] if plain else []
        self._defaults = [each.default for each in parameters if each.default is not each.empty]
        self.template, self.name_from = self._named_by(task.lock_name)
        self.limits = [self._named_by(each.name) for each in task.lock_limits]
        self._unique = task.unique_name and self._named_by(task.unique_name)

    def arguments_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call's arguments as `bound_arguments`. Raises `TypeError` as the call does."""
        # Mostly all arguments are given by position. To bind a signature takes far longer.
        absent = len(self._plain) - len(args)
        if not kwargs and self._plain and 0 <= absent <= len(self._defaults):
            defaults = self._defaults[len(self._defaults) - absent :]
            return dict(zip(self._plain, [*args, *defaults], strict=True))
        return bound_arguments(self.signature, args, kwargs)

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Names:
        """Return what a call with these arguments locks and reserves.

        Raises `TypeError` or `ValueError` if the arguments do not give a valid name, or no number
        of slots, and what a function of the project's raises.
        """
        arguments = self.arguments_of(args, kwargs)
        name, slots = self.name_from(arguments), self._slots
        if callable(slots):
            slots = checked_slots(slots(**arguments), f"lock_slots of the task {self._task}")
        limits = [name_from(arguments) for _, name_from in self.limits]
        if len({name, *limits}) <= len(limits):
            raise ValueError(f"a call of {self._task} has {[name, *limits]}: {SAME_NAMES}")
        return Names(name, slots, limits, self._unique[1](arguments) if self._unique else "")

    def _named_by(self, said: Any) -> tuple[str, Callable[[Mapping[str, Any]], str]]:
        """Return the template of the names, and what makes a name of a call's arguments."""
        if isinstance(said, str):
            return said, NameTemplate(said, self.signature).fill_from
        if isinstance(said, ArgumentNames):
            said.check(self.signature)
            template = ":".join([self._task, *(f"{{{field}}}" for field in said.names)])
            return template, partial(said.name_from, self._task)
        if said is None:
            return f"{self._task}:{{arguments}}", partial(digest_name, self._task)
        return f"{self._task}:{{lock_name}}", lambda arguments: checked_name(said(**arguments))
