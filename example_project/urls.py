from __future__ import annotations

from django.conf import settings
from django.contrib import admin
from django.urls import include, path, re_path
from django.views.static import serve

from example_project.uses.payment import pay

urlpatterns = [
    path("", include("example_project.videos.urls")),
    path("orders/<int:order_id>/charge/", pay),
    path("admin/", admin.site.urls),
    # On localhost only: a real site leaves its media to the web server.
    re_path(r"^media/(?P<path>.*)$", serve, {"document_root": settings.MEDIA_ROOT}),
]
