"""A call's arguments by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Binder", "bound_arguments"]


def bound_arguments(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by name, with the defaults of those that were not passed.

    The result is the same for positional and for keyword arguments. What a ``**kwargs`` parameter
    takes up is returned beside the other arguments, by name; with ``**`` before the name where a
    positional-only parameter or ``*args`` has the same one. Raises `TypeError` where the call
    itself would.
    """
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            further = arguments.pop(parameter.name)
            taken = {f"**{name}": further.pop(name) for name in arguments.keys() & further.keys()}
            arguments = {**further, **taken, **arguments}
    return arguments


class Binder:
    """`bound_arguments` for one signature, with a short cut for plain parameters.

    `inspect.Signature.bind` takes as long as a round trip to the store.
    """

    def __init__(self, signature: inspect.Signature) -> None:
        self.signature = signature
        parameters = signature.parameters.values()
        self._plain = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
        self._names = tuple(signature.parameters)
        self._required = {p.name for p in parameters if p.default is p.empty}
        # The order of the signature, which the result keeps.
        self._blank = {p.name: p.default for p in parameters}

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name. Raises `TypeError` where the call itself would."""
        names = self._names
        if self._plain and len(args) <= len(names) and kwargs.keys().isdisjoint(names[: len(args)]):
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            arguments = {**self._blank, **given}
            if self._required <= given.keys() and len(arguments) == len(names):
                return arguments
        return bound_arguments(self.signature, args, kwargs)
