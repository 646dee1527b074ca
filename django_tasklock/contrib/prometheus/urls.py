"""Two pages: what this host has counted, and the locks' state, which is to be read once."""

from __future__ import annotations

from django.urls import path

from . import metrics_views

app_name = "tasklock_prometheus"
urlpatterns = [
    path("", metrics_views.counters, name="counters"),
    path("locks/", metrics_views.state, name="state"),
]
