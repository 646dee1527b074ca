"""The daily report is sent once, though cron starts it on every host in the same minute."""

from __future__ import annotations

import datetime as dt
import time
from decimal import Decimal

from django.db.models import Sum

from django_tasklock import lock
from example_project.videos import ledger
from example_project.videos.models import DailyReport, Payment, Video


@lock("report:{date}", ttl=600, on_conflict="skip")
def send_daily_report(date: dt.date) -> DailyReport | None:
    """Build and send the report of `date`.

    Returns:
        The report, or None if somebody else is sending it or has sent it.
    """
    # The host whose clock is a little late finds the lock released, and the report here.
    if DailyReport.objects.filter(date=date).exists():
        return None
    ready = Video.objects.filter(status=Video.Status.READY).count()
    income = Payment.objects.filter(created_at__date=date).aggregate(sum=Sum("amount"))["sum"]
    send_mail(f"Report of {date}: {ready} videos ready, income {income or 0}")
    report: DailyReport = DailyReport.objects.create(
        date=date, videos_ready=ready, income=income or Decimal(0)
    )
    return report


def send_mail(text: str) -> None:
    """Pretend to send a mail: slow, and it cannot be taken back."""
    time.sleep(3.0)
    ledger.append("reports", text=text)
