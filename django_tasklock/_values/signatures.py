"""The functions that users decorate: what they take, and when their bodies run."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

_annotations: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    from annotationlib import Format

    # There the signature would evaluate them (PEP 649), and a function may use names that only type
    # checkers import. Nobody here needs their values.
    _annotations["annotation_format"] = Format.STRING


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return what `inspect.signature` does, without evaluating annotations. A function that has no
    signature, as some that are written in C, takes anything."""
    try:
        return inspect.signature(function, **_annotations)
    except ValueError:
        return inspect.signature(lambda *_, **__: None)


def taken_by(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of some arguments that ``function`` takes by name behind its first one."""
    takes = list(signature_of(function).parameters.values())[1:]
    names = {each.name for each in takes}
    anything = any(each.kind is each.VAR_KEYWORD for each in takes)
    return {name: given[name] for name in given if anything or name in names}


def refuse_bare(decorator: str, name: Any) -> None:
    """Raise `TypeError` if ``@decorator`` was written without its arguments: then the lock's
    ``name`` is a function that is only being defined, and its module does not have it yet."""
    if not inspect.isfunction(name) or not (own := name.__qualname__).isidentifier():
        return
    if own not in getattr(inspect.unwrap(name), "__globals__", (own,)):
        raise TypeError(f'@{decorator} needs the name of a lock: write @{decorator}("a name")')


def is_generator(function: Any) -> bool:
    """Return whether a call makes a generator, ``async`` or not, and runs nothing of the body."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
