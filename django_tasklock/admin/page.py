"""What the pages of the locks' admin have in common, and links to them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from django.contrib import admin, messages
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from ..exceptions import InvalidLockConfig, TaskLockError
from ..models import Lock
from .store_reader import problem_of

if TYPE_CHECKING:
    LockModelAdmin = admin.ModelAdmin[Lock]
else:
    LockModelAdmin = admin.ModelAdmin

__all__ = ["LockModelAdmin", "Page", "error_on_list", "url_name", "url_of"]

View = TypeVar("View", bound=Callable[..., HttpResponse])


def url_of(model_admin: LockModelAdmin, request: HttpRequest, view: str, *args: str) -> str:
    """Return the address of one of the admin's views, with the list's search and page number.

    ``view`` is the last part of the URL's name, such as "changelist"; ``args`` go into the URL.
    """
    url = reverse(
        f"admin:{url_name(model_admin, view)}",
        args=args,
        current_app=model_admin.admin_site.name,
    )
    filters = model_admin.get_preserved_filters(request)
    return add_preserved_filters({"preserved_filters": filters, "opts": model_admin.opts}, url)


def url_name(model_admin: LockModelAdmin, view: str) -> str:
    """Return the name of the URL of one of the admin's views, as Django builds its own."""
    return f"{model_admin.opts.app_label}_{model_admin.opts.model_name}_{view}"


class OnAdmin(Protocol):
    """An object with views: a page, or the admin itself."""

    @property
    def model_admin(self) -> LockModelAdmin: ...


def error_on_list(view: View) -> View:
    """Decorate a view: an error of a store is shown as a message on the list of locks."""

    @wraps(view)
    def answer(self: OnAdmin, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            return view(self, request, *args, **kwargs)
        except (TaskLockError, InvalidLockConfig) as error:
            self.model_admin.message_user(request, problem_of(error), messages.ERROR)
            return HttpResponseRedirect(url_of(self.model_admin, request, "changelist"))

    return cast("View", answer)


class Page:
    """A page beside those that Django's `ModelAdmin` has; `LockAdmin` has one object of each.

    It asks the ``model_admin`` for permissions, and shows its messages there.
    """

    def __init__(self, model_admin: LockModelAdmin) -> None:
        self.model_admin = model_admin

    def urls(self) -> list[URLPattern]:
        """Return the page's URLs, below those of the admin."""
        raise NotImplementedError

    def path(
        self, route: str, view: Callable[..., HttpResponse], name: str, *, atomic: bool = True
    ) -> URLPattern:
        """Return the URL of a view; ``name`` is the last part of the URL's name.

        Without ``atomic`` the view runs outside of a transaction, also with ATOMIC_REQUESTS: what
        it writes stays when it fails later.
        """
        answer: Callable[..., Any] = self.model_admin.admin_site.admin_view(view)
        if not atomic:
            for alias in connections:
                answer = transaction.non_atomic_requests(using=alias)(answer)
        return path(route, answer, name=url_name(self.model_admin, name))

    def url_of(self, request: HttpRequest, view: str, *args: str) -> str:
        """Return the address of one of the admin's views; see the function `url_of`."""
        return url_of(self.model_admin, request, view, *args)

    def redirect(self, request: HttpRequest, view: str = "changelist") -> HttpResponseRedirect:
        """Return a redirect to one of the admin's views."""
        return HttpResponseRedirect(self.url_of(request, view))

    def require_view(self, request: HttpRequest) -> None:
        """Raise `PermissionDenied` for a user who may not see locks."""
        if not self.model_admin.has_view_permission(request):
            raise PermissionDenied

    def require_delete(self, request: HttpRequest) -> None:
        """Raise `PermissionDenied` for a user who may not clear locks."""
        if not self.model_admin.has_delete_permission(request):
            raise PermissionDenied

    def rendered(
        self, request: HttpRequest, template: str, title: str, context: dict[str, Any]
    ) -> TemplateResponse:
        """Return the page, made of a ``template`` of this app and the ``context``."""
        request.current_app = self.model_admin.admin_site.name
        return TemplateResponse(
            request,
            f"admin/django_tasklock/lock/{template}",
            {
                **self.model_admin.admin_site.each_context(request),
                "title": title,
                "opts": self.model_admin.opts,
                "media": self.model_admin.media,
                "list_url": self.url_of(request, "changelist"),
                **context,
            },
        )
