from __future__ import annotations

from django.urls import path

from example_project.videos import views

app_name = "videos"
urlpatterns = [
    path("", views.video_list, name="list"),
    path("upload/", views.upload, name="upload"),
    path("videos/<int:pk>/", views.video_detail, name="detail"),
    path("videos/<int:pk>/start/", views.start, name="start"),
    path("orders/", views.order_list, name="orders"),
    path("orders/<int:pk>/pay/", views.pay, name="pay"),
]
