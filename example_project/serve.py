"""``python -m example_project.serve``: the site with its admin, one worker, a Redis and some locks.

Uploads stay in ``.serve/`` for the next time. Ctrl-C ends everything.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from example_project.processes import (
    PROJECT,
    START_SECONDS,
    NotReady,
    Process,
    ending,
    start_worker,
    until_interrupted,
    wait_for_workers,
)
from example_project.servers import free_port, redis_of_the_site

HOST = "127.0.0.1"
ADMIN = "admin"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m example_project.serve", description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="default: %(default)s")
    parser.add_argument("--state", type=Path, default=PROJECT / ".serve", help="default: .serve")
    options = parser.parse_args()
    return until_interrupted(lambda: serve(options.port, options.state), status=0)


def serve(wanted_port: int, state: Path) -> int:
    """Run until somebody interrupts or one of the processes ends; then end the others."""
    state.mkdir(parents=True, exist_ok=True)
    with redis_of_the_site(state):
        os.environ["EXAMPLE_SECRET_KEY"] = secrets.token_urlsafe(40)
        import django

        django.setup()
        password = prepare()
        port = usable_port(wanted_port)
        processes = [start_worker("worker@example", state / "logs"), start_site(port, state)]
        with ending(processes):
            wait_for_workers(processes[:1])
            wait_for_site(processes[1], port)
            send_unfinished()
            from example_project.uses.samples import sample_locks

            with sample_locks(state / "logs"):
                print(f"The site     http://{HOST}:{port}/")
                print(f"Its admin    http://{HOST}:{port}/admin/   {ADMIN} / {password}")
                print(f"Its logs     {state / 'logs'}")
                print(f"Its locks    {command_line()}")
                print("Ctrl-C ends it.", flush=True)
                return watch(processes)


def prepare() -> str:
    """Make the tables, something to look at on the first start, and the admin's new password."""
    from django.contrib.auth import get_user_model
    from django.core.files import File
    from django.core.management import call_command

    from example_project.demo.clips import make_clips
    from example_project.videos.models import Order, Video

    call_command("migrate", verbosity=0)
    password = secrets.token_urlsafe(9)
    user, _ = get_user_model().objects.get_or_create(
        username=ADMIN, defaults={"is_staff": True, "is_superuser": True}
    )
    user.set_password(password)
    user.save()
    if not Order.objects.exists():
        for number, amount in enumerate(["4.90", "9.90", "19.90"], start=1):
            Order.objects.create(title=f"Subscription {number}", amount=Decimal(amount))
    if not Video.objects.exists():
        for clip in make_clips(3, Path(os.environ["EXAMPLE_STATE"]) / "clips"):
            with clip.path.open("rb") as file:
                Video.objects.create(title=clip.title, file=File(file, name=clip.path.name))
    return password


def send_unfinished() -> None:
    """Send what the last session left unfinished; its messages went away with its Redis."""
    from example_project.videos.models import Video
    from example_project.videos.tasks import transcode

    unfinished = [Video.Status.UPLOADED, Video.Status.PROCESSING]
    for pk in Video.objects.filter(status__in=unfinished).values_list("pk", flat=True):
        transcode.delay(pk)


def command_line() -> str:
    """The command that lists the locks of this site, for a shell in any directory."""
    names = ["DJANGO_SETTINGS_MODULE", "EXAMPLE_STATE", "EXAMPLE_REDIS_URL", "EXAMPLE_REDIS_PREFIX"]
    environment = [f"{name}={shlex.quote(os.environ[name])}" for name in names]
    manage = PROJECT / "example_project" / "manage.py"
    return " ".join([*environment, shlex.join([sys.executable, str(manage), "locks", "list"])])


def usable_port(wanted: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError:
            other = free_port()
            print(f"Port {wanted} is taken; this is on {other} instead.")
            return other
    return wanted


def start_site(port: int, state: Path) -> Process:
    command = [
        *(sys.executable, "-m", "example_project.manage"),
        *("runserver", "--noreload", f"{HOST}:{port}"),
    ]
    return Process("site", command, state / "logs" / "site.log")


def wait_for_site(site: Process, port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and site.exit_status is None:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/", timeout=5):
                return
        except urllib.error.HTTPError:
            return  # it answers, and the page will say what is the matter
        except OSError:
            time.sleep(0.1)
    raise NotReady(f"The site did not come up. Its log ends:\n{site.last_lines()}")


def watch(processes: Sequence[Process]) -> int:
    while True:
        for process in processes:
            if process.exit_status is not None:
                print(f"{process.name} ended. Its log ends:\n{process.last_lines()}")
                return 1
        time.sleep(0.3)


if __name__ == "__main__":
    sys.exit(main())
