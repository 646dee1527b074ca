"""The arguments of a call, its lock's name, and its slots."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from celery import Task

from .._engine.names import ArgumentNames, NameTemplate, bound_arguments, digest_name
from .._values.arguments import checked_name
from .._values.signatures import signature_of
from .._values.slots import checked_slots


class Naming:
    """The arguments, the lock's name and its slots for each call of one task.

    ``template`` is the lock's name with fields in the place of all values: the same for every call.
    ``arguments_of`` returns a call's arguments by name, with defaults, and ``name_from`` makes the
    lock's name of those.

    ``task`` is the class: a function that is its attribute would be bound to an instance. Raises
    `TypeError` or `ValueError` for a ``lock_name`` that does not go with the body's arguments.
    """

    template: str
    name_from: Callable[[Mapping[str, Any]], str]

    def __init__(self, task: Any) -> None:
        self.signature = signature = _signature_of_body(task)
        self._task, self._slots, name = str(task.name), task.lock_slots, task.lock_name
        # Of a call's positional and keyword arguments. Raises `TypeError` as the call does.
        self.arguments_of = partial(bound_arguments, signature)
        if isinstance(name, str):
            self.template, self.name_from = name, NameTemplate(name, signature).fill_from
        elif isinstance(name, ArgumentNames):
            name.check(signature)
            self.template = ":".join([self._task, *(f"{{{field}}}" for field in name.names)])
            self.name_from = partial(name.name_from, self._task)
        elif name is None:
            self.template = f"{self._task}:{{arguments}}"
            self.name_from = partial(digest_name, self._task)
        else:
            self.template = f"{self._task}:{{lock_name}}"
            self.name_from = lambda arguments: checked_name(name(**arguments))

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, int]:
        """Return the name of the lock for a call with these arguments, and how many calls with it
        may run at once.

        Raises `TypeError` or `ValueError` if the arguments do not give a valid name, or no number
        of slots, and what a function of the project's raises.
        """
        arguments = self.arguments_of(args, kwargs)
        name, slots = self.name_from(arguments), self._slots
        if callable(slots):
            slots = checked_slots(slots(**arguments), f"lock_slots of the task {self._task}")
        return name, slots


def _signature_of_body(task: type[Task]) -> inspect.Signature:
    """Return the signature of a task's body as callers see it."""
    run = inspect.getattr_static(task, "run")
    if isinstance(run, staticmethod):
        return signature_of(run.__func__)
    signature = signature_of(run)
    return signature.replace(parameters=list(signature.parameters.values())[1:])
