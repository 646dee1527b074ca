"""``@lock_view``: one request at a time for each name, and an answer for the others."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from django.http import HttpRequest, HttpResponse, JsonResponse

from ._compat.django import UNTIL_COMMIT
from ._engine.acquiring import How
from ._engine.decorator import Around
from ._engine.lock import OPTIONS, Block
from ._engine.service import LockOptions
from ._values.arguments import check_known, checked_number, checked_template
from ._values.lock_info import LockInfo
from ._values.signatures import refuse_bare, signature_of
from ._values.words import age, logger, printable
from .exceptions import LockNotAcquired, StoreUnavailable

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["lock_view"]

View = TypeVar("View", bound=Callable[..., Any])
REFUSED = "This is under way already. Try again in a moment."
COOLING = "This ran a moment ago. Try again later."
OUTAGE = "This cannot be done now. Try again in a moment."


def lock_view(
    name: str | Callable[..., str],
    *,
    status: int = 409,
    retry_after: bool | int = True,
    outage_status: int | None = None,
    **options: Unpack[LockOptions],
) -> Callable[[View], View]:
    """Hold a lock for each call of a view; answer with ``status`` if somebody else holds it.

    For functions, ``async def``, the views that ``as_view()`` and DRF's ``api_view`` make, methods
    such as ``dispatch`` and ``post``, and Django's ``method_decorator``.

    Args:
        name: a template that the view's arguments fill, ``"pay:{order_id}"`` or
            ``"cart:{request.user.pk}"``; or a callable that gets the view's arguments and returns
            the name.
        status: the HTTP status of the refusal, such as 409, 423 or 429.
        retry_after: seconds to send as the header ``Retry-After``. False sends none. True sends as
            many seconds as the holder has worked already, at least 1 and at most what is left of
            its lease. For a lock that cools, or that an operator holds, True sends what is left.
        outage_status: the HTTP status if the store does not answer; the view is not called then.
            None: raise `StoreUnavailable`.
        **options: those of `lock`. With ``wait`` a request waits for its turn. With ``cooldown``,
            a view that returned anything has succeeded. With ``until_commit=True`` the lock is
            held until the commit of ATOMIC_REQUESTS, which is around all decorators.

    A refusal is a line of text, or a JSON object with the key ``detail`` for a client that prefers
    JSON. Inside a DRF view it is DRF's ``Response`` with that object. The lock is held until the
    view returns: what a streaming response does after that, or a template response when it is
    rendered, is not under the lock.

    Raises `TypeError` or `ValueError` for a wrong argument. A call of the view raises what the view
    raises; `LeaseLost` if the view returned and its lease was lost before; `StoreUnavailable`,
    see ``outage_status``. If only the release gets no answer, the view's response is returned: the
    lock was held to the end, and is released later.
    """
    check_known("lock_view", options, OPTIONS)
    options.setdefault("renew", True)
    how = How(**options)
    refuse_bare("lock_view", name)
    if not callable(name):
        checked_template(name)
    outage_code = status if outage_status is None else outage_status
    for what, code in ("status", status), ("outage_status", outage_code):
        if code not in range(400, 600):
            raise ValueError(f"{what} must be an HTTP status from 400 to 599, not {code!r}")
    if not isinstance(retry_after, bool):
        checked_number(retry_after, "retry_after")

    # Where the name was forgotten, the view is taken for it, and a request comes here.
    def decorate(view: View, *_: Any, **__: Any) -> View:
        wrapped = _LockedView(view, name, how, status, outage_status, retry_after).wrapped()
        vars(wrapped)[UNTIL_COMMIT] = how.until_commit
        return cast("View", wrapped)

    return decorate


class _LockedView(Around):
    """A view under a lock. The options are those of `lock_view`."""

    def __init__(
        self, view: Any, name: Any, how: How, status: int, outage_status: Any, retry_after: Any
    ) -> None:
        if isinstance(view, type):
            raise TypeError(
                f"lock_view() is for views and methods: decorate the class {view.__name__} with "
                'method_decorator(lock_view(...), name="dispatch")'
            )
        if not callable(view):
            raise TypeError(
                f'lock_view() must decorate a view, not {view!r}. Write @lock_view("a name")'
            )
        self.status, self.outage_status, self.retry_after = status, outage_status, retry_after
        self.answered = (LockNotAcquired,)
        if outage_status is not None:
            self.answered += (StoreUnavailable,)
        self.called, make = _called(view), partial(Block, how, None, "a view")
        super().__init__(view, name, signature_of(self.called), make)

    def answer(self, block: Any, error: Any) -> HttpResponse:
        arguments = (*block.args, *block.kwargs.values())
        if isinstance(error, StoreUnavailable):
            logger.error("no lock for a view: %s", printable(error))
            return _response(OUTAGE, self.outage_status, arguments)
        holder = error.holder
        response = _response(COOLING if holder.cooling else REFUSED, self.status, arguments)
        wait = _seconds_to_wait(holder) if self.retry_after is True else self.retry_after
        if self.retry_after is not False and wait is not None:
            response.headers["Retry-After"] = str(max(int(self.retry_after), math.ceil(wait)))
        return response

    def call(self, args: Any, kwargs: Any) -> Any:
        # The ``dispatch`` of a view class with ``async`` methods is no coroutine function, and
        # returns a coroutine.
        first = args[0] if args else None
        owner = getattr(getattr(self.called, "func", self.called), "__self__", first)
        if getattr(owner, "view_is_async", False):
            return self.acall(args, kwargs)
        return super().call(args, kwargs)


def _seconds_to_wait(holder: LockInfo) -> float | None:
    """Return the seconds after which to try again; None if the lock has no end.

    A lock that cools, or that an operator holds, ends with its ttl. The holder of any other lock is
    at work, and its ttl says nothing of that: it may go on for as long again as it has until now.
    """
    if holder.cooling or holder.held_by or holder.acquired_at is None or holder.ttl is None:
        return holder.ttl
    return min(holder.ttl, age(holder.acquired_at))


def _as_view(request: Any, *args: Any, **kwargs: Any) -> None:
    """Takes what a view takes that ``as_view()`` has made, of Django or of DRF."""


def _called(view: Any) -> Any:
    """What has the arguments of the view's calls.

    Not what that wraps in turn, where it gets ``self`` as well: `method_decorator` passes a method
    that is bound, and says that it wraps the function; what ``as_view()`` returns says that it
    wraps the class's ``dispatch``, if that is decorated or DRF's.
    """
    if hasattr(view, "view_class") or hasattr(view, "cls"):
        return _as_view

    def has_them(each: Any) -> bool:
        return isinstance(each, partial | MethodType) or hasattr(each, "__signature__")

    called = inspect.unwrap(view, stop=has_them)
    if isinstance(called, partial):  # A copy, which does not say what it wraps.
        return partial(called.func, *called.args, **called.keywords)
    return called


def _response(text: str, status: int, arguments: Sequence[Any]) -> HttpResponse:
    # Who has one of DRF's requests has imported this.
    rest = sys.modules.get("rest_framework.request")
    for argument in arguments:
        if rest is not None and isinstance(argument, rest.Request):
            from rest_framework.response import Response

            return cast("HttpResponse", Response({"detail": text}, status))
        if isinstance(argument, HttpRequest):
            kind = argument.get_preferred_type(["text/plain", "application/json"])
            if kind == "application/json":
                return JsonResponse({"detail": text}, status=status)
            break
    return HttpResponse(text, status=status, content_type="text/plain; charset=utf-8")
