"""Opens the admin's pages under a theme, and prints what came: see test_admin_themes.py."""

from __future__ import annotations

import json
import re
from typing import Any

import django

django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.test import Client  # noqa: E402

from django_tasklock import locks  # noqa: E402

LIST = "/admin/django_tasklock/lock/"


def main() -> None:
    client = Client()
    client.force_login(User.objects.get(username="themed"))
    box = None
    said: dict[str, Any] = {}
    for name, url in {
        "list": LIST,
        "filtered": f"{LIST}?task=videos.transcode&o=1",
        "live": f"{LIST}live/",
        "detail": f"{LIST}default_3Avideo_3A1/change/",
        "clear": f"{LIST}default_3Avideo_3A1/delete/",
        "health": f"{LIST}health/",
        "hold": f"{LIST}hold/",
    }.items():
        response = client.get(url)
        page = response.content.decode()
        said[name] = {"status": response.status_code, "page": page}
        if name == "clear":
            box = re.search(r'name="leases" value="([^"]*)"', page)
    assert box
    posted = client.post(f"{LIST}clear/", {"leases": box[1].replace("&quot;", '"')})
    said["cleared"] = {"status": posted.status_code, "page": str(locks.is_locked("video:1"))}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
