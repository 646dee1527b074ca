"""``@lock_view``: one request at a time for each name, and an answer for the others."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MethodType
from typing import Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpResponse, JsonResponse
from django.http.response import HttpResponseBase

from ._engine.aio.drive import drive
from ._engine.aio.leaving import left_with
from ._engine.aio.verbs import left
from ._engine.cooling import cooling_times
from ._engine.lease import Lease
from ._engine.names import NameTemplate
from ._engine.service import LockService
from ._engine.steps import Steps, blocking
from ._engine.use import Use, log_not_released
from ._values.arguments import check_options, checked_template
from ._values.describe import printable
from ._values.lock_info import LockInfo
from ._values.signatures import signature_of
from .conf import DEFAULT_ALIAS
from .exceptions import StoreUnavailable

__all__ = ["lock_view"]

logger = logging.getLogger("django_tasklock")

View = TypeVar("View", bound=Callable[..., Any])
REFUSED = "This is under way already. Try again in a moment."
COOLING = "This ran a moment ago. Try again later."
OUTAGE = "This cannot be done now. Try again in a moment."


def lock_view(
    name: str | Callable[..., str],
    *,
    wait: float | None = 0,
    status: int = 409,
    retry_after: bool | int = True,
    outage_status: int | None = None,
    ttl: float | None = None,
    renew: bool = True,
    store: str = DEFAULT_ALIAS,
    hold_at_least: float = 0,
    cooldown: float = 0,
    cooldown_after_error: float = 0,
) -> Callable[[View], View]:
    """Hold a lock for each call of a view; answer with ``status`` if somebody else holds it.

    For functions, ``async def``, the views that ``as_view()`` and DRF's ``api_view`` make, methods
    such as ``dispatch`` and ``post``, and Django's ``method_decorator``.

    ``name``: a template that the view's arguments fill, ``"pay:{order_id}"`` or
    ``"cart:{request.user.pk}"``; or a callable that gets the view's arguments and returns the name.
    ``wait``: seconds that a request waits for the lock; 0 does not wait, None waits for ever.
    ``status``: of the refusal, such as 409, 423 or 429. ``retry_after``: True sends the seconds
    that are left of the holder's lease, rounded up, as the header ``Retry-After``; a number of
    seconds sends that; False sends none. ``outage_status``: of the answer where the store does not
    answer and the view was not called; None raises `StoreUnavailable`. ``ttl``: seconds that the
    lease lasts; None, the store's TTL. ``renew``: extend the lease while the view runs. ``store``:
    an alias of the setting. ``hold_at_least``, ``cooldown`` and ``cooldown_after_error``: seconds
    for which the lock stays taken after the view, as for `lock`; a view that returned anything has
    succeeded.

    A refusal is a line of text, or a JSON object with the key ``detail`` for a client that prefers
    JSON. Inside a DRF view it is DRF's ``Response`` with that object. The lock is held until the
    view returns: what a streaming response does after that, or a template response when it is
    rendered, is not under the lock.

    Raises `TypeError` or `ValueError` for a wrong argument. A call of the view raises what the view
    raises; `LeaseLost` if the view returned and its lease was lost before; `StoreUnavailable`,
    see ``outage_status``. If only the release gets no answer, the view's response is returned: the
    lock was held to the end, and is released later.
    """
    if not callable(name):
        checked_template(name)
    check_options(ttl, wait, renew, store)
    _check_status("status", status)
    if outage_status is not None:
        _check_status("outage_status", outage_status)
    _check_retry_after(retry_after)
    times = cooling_times(hold_at_least, cooldown, cooldown_after_error)

    def acquire(lock_name: str, use: Use) -> Steps[Lease | LockInfo]:
        service, use.template = LockService(store), None if callable(name) else name
        return service._acquiring(lock_name, use, times, ttl=ttl, wait=wait, renew=renew)

    def refusal(holder: LockInfo, arguments: Sequence[Any]) -> HttpResponse:
        response = _answer(COOLING if holder.cooling else REFUSED, status, arguments)
        if retry_after is True:
            if holder.ttl is not None:
                response.headers["Retry-After"] = str(max(1, math.ceil(holder.ttl)))
        elif retry_after is not False:
            response.headers["Retry-After"] = str(retry_after)
        return response

    def outage(error: StoreUnavailable, arguments: Sequence[Any]) -> HttpResponse:
        if outage_status is None:
            raise error
        logger.error("no lock for a view: %s", printable(error))
        return _answer(OUTAGE, outage_status, arguments)

    def decorate(view: View) -> View:
        if isinstance(view, type):
            raise TypeError(
                f"lock_view() is for views and methods: decorate the class {view.__name__} with "
                'method_decorator(lock_view(...), name="dispatch")'
            )
        if not callable(view):
            raise TypeError(
                f'a view is called, and {view!r} cannot be: decorate it with @lock_view("a name")'
            )
        name_of, called = _naming(name, view), _innermost(view)

        async def locked_async(*args: Any, **kwargs: Any) -> HttpResponseBase:
            everything = (*args, *kwargs.values())
            # A name with the user's key reads the user from the database.
            lock_name = await sync_to_async(name_of)(args, kwargs)
            use = Use(None)
            try:
                won = await drive(store, acquire(lock_name, use), left(use))
            except StoreUnavailable as error:
                return outage(error, everything)
            if isinstance(won, LockInfo):
                return refusal(won, everything)
            if times is not None:
                use.cool(times)
            try:
                response = await view(*args, **kwargs)
            except BaseException as error:
                await left_with(store, error, lambda: _leave(use, failed=True))
                raise
            try:
                await left_with(store, None, lambda: _leave(use, failed=False))
            except StoreUnavailable as error:
                log_not_released("a view", lock_name, error)
            return cast("HttpResponseBase", response)

        def locked(*args: Any, **kwargs: Any) -> HttpResponseBase | Awaitable[HttpResponseBase]:
            if _dispatches_to_async(called, args):
                return locked_async(*args, **kwargs)
            everything = (*args, *kwargs.values())
            use = Use(None)
            try:
                won = blocking(acquire(name_of(args, kwargs), use))
            except StoreUnavailable as error:
                return outage(error, everything)
            if isinstance(won, LockInfo):
                return refusal(won, everything)
            failed = True
            if times is not None:
                use.cool(times)
            try:
                response = view(*args, **kwargs)
                failed = False
            finally:
                _leave(use, failed=failed)
            return cast("HttpResponseBase", response)

        chosen = locked_async if iscoroutinefunction(view) else locked
        return cast("View", functools.wraps(view)(chosen))

    return decorate


def _leave(use: Use, *, failed: bool) -> None:
    """Release the lease at the end of a view. Raises `LeaseLost` unless the view ``failed``."""
    assert use.lease is not None
    name = use.lease.name
    try:
        use.leave(failed=failed)
    except StoreUnavailable as error:
        log_not_released("a view", name, error)


def _naming(
    name: str | Callable[..., str], view: Callable[..., Any]
) -> Callable[[Sequence[Any], Mapping[str, Any]], str]:
    if callable(name):
        named = name
        return lambda args, kwargs: named(*args, **kwargs)
    return NameTemplate(name, _signature(view)).fill


def _innermost(view: Callable[..., Any]) -> Callable[..., Any]:
    """Return what the decorators of a view go over, which has the arguments of its calls.

    Not what it wraps in turn, where that gets ``self`` as well: `method_decorator` passes a method
    that is bound, and says that it wraps the function; what ``as_view()`` returns says that it
    wraps the class's ``dispatch``, if that is decorated or DRF's.
    """
    while not isinstance(view, functools.partial | MethodType) and hasattr(view, "__wrapped__"):
        wrapped = view.__wrapped__
        if hasattr(view, "__signature__") or (_of_class(view) and not _of_class(wrapped)):
            break
        view = wrapped
    return view


def _of_class(view: Any) -> bool:
    """Whether ``as_view()`` has made it: Django's, or that of DRF's view sets."""
    return hasattr(view, "view_class") or hasattr(view, "cls")


def _signature(view: Callable[..., Any]) -> inspect.Signature:
    called = _innermost(view)
    if isinstance(called, functools.partial):
        called = functools.partial(called.func, *called.args, **called.keywords)
    return signature_of(called, follow_wrapped=not _of_class(called))


def _dispatches_to_async(called: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether this is the ``dispatch`` of a view class with ``async`` methods: it is no coroutine
    function, and returns a coroutine."""
    owner = getattr(getattr(called, "func", called), "__self__", args[0] if args else None)
    return bool(getattr(owner, "view_is_async", False))


def _answer(text: str, status: int, arguments: Sequence[Any]) -> HttpResponse:
    # Who has one of DRF's requests has imported this.
    rest = sys.modules.get("rest_framework.request")
    for argument in arguments:
        if rest is not None and isinstance(argument, rest.Request):
            from rest_framework.response import Response

            return cast("HttpResponse", Response({"detail": text}, status))
        preferred_type = getattr(argument, "get_preferred_type", None)
        if preferred_type is not None:
            if preferred_type(["text/plain", "application/json"]) == "application/json":
                return JsonResponse({"detail": text}, status=status)
            break
    return HttpResponse(text, status=status, content_type="text/plain; charset=utf-8")


def _check_status(what: str, status: Any) -> None:
    if isinstance(status, bool) or not isinstance(status, int) or not 400 <= status <= 599:
        raise ValueError(f"{what} is an HTTP status from 400 to 599, not {status!r}")


def _check_retry_after(seconds: Any) -> None:
    if not isinstance(seconds, bool | int) or seconds < 0:
        raise ValueError(f"retry_after is a bool or a whole number of seconds, not {seconds!r}")
