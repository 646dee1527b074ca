from __future__ import annotations

import datetime as dt
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from example_project.videos.reports import send_daily_report


class Command(BaseCommand):
    help = "Send the daily report. Put it into the crontab of every host; it is sent once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--date", type=dt.date.fromisoformat, help="default: today")

    def handle(self, *_: Any, **options: Any) -> None:
        date = options["date"] or timezone.localdate()
        report = send_daily_report(date)
        self.stdout.write(f"{date}: {'sent' if report else 'sent by somebody else'}")
