from __future__ import annotations

import datetime as dt
import time
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from example_project.videos.reports import send_daily_report


class Command(BaseCommand):
    help = "Send the daily report. Put it into the crontab of every host; it is sent once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--date", type=dt.date.fromisoformat, help="default: today")
        parser.add_argument(
            "--when", type=Path, metavar="FILE", help="wait first until there is such a file"
        )

    def handle(self, *_: Any, **options: Any) -> None:
        date = options["date"] or timezone.localdate()
        if options["when"]:
            self.stdout.write("waiting")
            self.stdout.flush()
            while not options["when"].exists():
                time.sleep(0.01)
        report = send_daily_report(date)
        self.stdout.write(f"{date}: {'sent' if report else 'sent by somebody else'}")
