"""A lock around each call of a function: `Around`, and what ``@lock(...)`` makes of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from asgiref.sync import iscoroutinefunction, sync_to_async

from .._values.signatures import is_generator
from ..exceptions import TaskLockError
from .aio import drive
from .names import NameTemplate
from .waiting import blocking

P = ParamSpec("P")
R = TypeVar("R")


class Around:
    """Holds a lock for each call of ``function``.

    ``name``: a template that the call's arguments fill, several in a tuple, or a callable that gets
    the arguments. ``make``: makes the `Block` of a call, still without a name; the first argument
    is its `How`.
    """

    # The errors of `Block.steps` that a call answers, and does not raise.
    answered: tuple[type[TaskLockError], ...] = ()
    # Whether to make the name may read the database: then the thread of the ORM makes it.
    reads_orm = True

    def __init__(
        self, function: Any, name: Any, signature: inspect.Signature, make: functools.partial[Any]
    ) -> None:
        self.function, self.name, self.make = function, name, make
        self.is_async = iscoroutinefunction(function) or iscoroutinefunction(_called(function))
        if self.is_async:
            make.args[0].refuse_async()
        names = name if isinstance(name, tuple) else (name,)
        self.templates = [] if callable(name) else [NameTemplate(each, signature) for each in names]

    def prepare(self, block: Any, args: Any, kwargs: Any) -> None:
        """Give the block of a call its arguments, and the name of its lock."""
        block.args, block.kwargs = args, kwargs
        if callable(self.name):
            block.name = self.name(*args, **kwargs)
        else:
            names = [template.fill(args, kwargs) for template in self.templates]
            block.name = names if isinstance(self.name, tuple) else names[0]
            block.template = self.name

    def answer(self, block: Any, error: Any) -> Any:
        """Return what a call returns that did not get its lock: the ``error`` is `answered`."""
        return None

    def run(self, block: Any) -> Any:
        """Call the function, which has its lock. Of an ``async`` one, return the coroutine.

        Raises `TypeError` for a coroutine that nobody would await under the lock.
        """
        result = self.function(*block.args, **block.kwargs)
        if inspect.iscoroutine(result) and not block.awaits:
            result.close()
            raise TypeError(
                f"{result.__qualname__} is async, and a decorator hides that: its body would run "
                "after the release. Put the lock below that decorator, or make the decorator async"
            )
        return result

    def call(self, args: Any, kwargs: Any) -> Any:
        """Make a call under its lock."""
        block = self.make()
        self.prepare(block, args, kwargs)
        try:
            blocking(block.steps())
        except self.answered as error:
            return self.answer(block, error)
        with block:
            return self.run(block)

    async def acall(self, args: Any, kwargs: Any) -> Any:
        """As `call`, on an event loop."""
        block = self.make()
        block.how.refuse_async()
        block.awaits = True
        if self.reads_orm:
            await sync_to_async(self.prepare)(block, args, kwargs)
        else:
            self.prepare(block, args, kwargs)
        try:
            await drive(block.how.store, block.steps(), block.drop)
        except self.answered as error:
            return self.answer(block, error)
        async with block:
            return await self.run(block)

    def wrapped(self) -> Callable[..., Any]:
        """Return the function under the lock."""

        def locked(*args: Any, **kwargs: Any) -> Any:
            return self.call(args, kwargs)

        async def locked_async(*args: Any, **kwargs: Any) -> Any:
            return await self.acall(args, kwargs)

        return functools.wraps(self.function)(locked_async if self.is_async else locked)


class SkippingDecorator(Protocol):
    """What `lock` returns with ``on_conflict="skip"``: a decorator, and no context manager."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Callable[P, R | None]: ...
    def __call__(self, function: Callable[P, Any]) -> Callable[P, Any]:
        """Return ``function`` under the lock. A call returns None if the lock is taken."""


def _called(function: Any) -> Any:
    """What a call of ``function`` runs: of an object that is no function, its ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    is_plain = inspect.isroutine(function) or isinstance(function, type)
    return function if is_plain else type(function).__call__


def refuse(function: Any) -> None:
    """Raise `TypeError` for a function that cannot be under a lock, with what to write instead."""
    called = _called(function)
    if hasattr(function.__class__, "apply_async"):  # That of a proxy is the task's.
        mend = (
            "it is a Celery task, and only direct calls of it would take the lock. "
            "Use base=LockedTask, or put @shared_task above @lock."
        )
    elif isinstance(called, type):
        mend = "a call of a class only makes an object. Decorate the method that does the work."
    elif is_generator(called):
        mend = "a generator's body runs after the call. Use `with lock(...)` inside the body."
    elif not callable(function) or isinstance(function, staticmethod):
        mend = f"it is a {type(function).__name__}. Put the decorator that makes it above @lock."
    else:
        return
    name = getattr(function, "__qualname__", function)
    raise TypeError(f"lock() cannot hold a lock for {name}: {mend}")
