"""The views that a Prometheus server reads.

They answer whoever has the token of the setting (``TASKLOCK_METRICS = {"TOKEN": ...}``) in the
header ``Authorization: Bearer ...``, and users who may see locks (the permission ``view_lock``).
"""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from ...operators.exposition import CONTENT_TYPE, as_text
from ...operators.lock_state import lock_state
from ..lock_labels import own_settings
from .counters import exposed

__all__ = ["counters", "state"]

VIEW_PERMISSION = "django_tasklock.view_lock"


@login_not_required  # For `LoginRequiredMiddleware`: a token needs no user.
@never_cache
@require_safe
def counters(request: HttpRequest) -> HttpResponse:
    """What the processes of this host have counted."""
    if not _may_see(request):
        return HttpResponseForbidden("no token, and no permission to see locks\n")
    return HttpResponse(exposed(), content_type=CONTENT_TYPE)


@login_not_required  # For `LoginRequiredMiddleware`: a token needs no user.
@never_cache
@require_safe
def state(request: HttpRequest) -> HttpResponse:
    """The state of all stores and guarded rows: the same on every host, so one is enough."""
    if not _may_see(request):
        return HttpResponseForbidden("no token, and no permission to see locks\n")
    return HttpResponse(as_text(lock_state()), content_type=CONTENT_TYPE)


def _may_see(request: HttpRequest) -> bool:
    token = own_settings().get("TOKEN")
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if token and scheme.lower() == "bearer" and constant_time_compare(given.strip(), token):
        return True
    user = getattr(request, "user", None)
    return user is not None and user.is_active and user.has_perm(VIEW_PERMISSION)
