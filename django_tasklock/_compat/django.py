"""What Django's admin does not document and we use.

Read in Django 5.2.19; the other releases that we support have it too.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse


def add_without_transaction(
    model_admin: Any, request: HttpRequest, form_url: str, extra_context: dict[str, Any]
) -> HttpResponse:
    """As ``ModelAdmin.add_view``, which opens a transaction for a POST."""
    answer: HttpResponse = model_admin._changeform_view(request, None, form_url, extra_context)
    return answer
