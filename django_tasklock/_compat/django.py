"""What Django's admin does not document and we use.

Read in Django 5.2.19; the other releases that we support have it too.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse


def add_without_transaction(admin: Any, request: HttpRequest, *shown: Any) -> HttpResponse:
    """As ``ModelAdmin.add_view``, which opens a transaction for a POST."""
    answer: HttpResponse = admin._changeform_view(request, None, *shown)
    return answer
