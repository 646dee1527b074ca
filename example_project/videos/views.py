from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from django_tasklock import LeaseLost, LockInfo, LockNotAcquired, StoreUnavailable, locks
from example_project.videos.forms import UploadForm
from example_project.videos.models import Order, Video
from example_project.videos.payments import pay as pay_order
from example_project.videos.tasks import transcode


def video_list(request: HttpRequest) -> HttpResponse:
    """The newest videos, and who is working on which."""
    running: dict[str, LockInfo] = {}
    try:
        running = {info.name: info for info in locks.list(prefix="video:")}
    except StoreUnavailable:
        messages.warning(request, "Redis cannot be reached: what runs now is not known.")
    videos = list(Video.objects.all()[:50])
    rows = [(video, running.get(video.lock_name)) for video in videos]
    unfinished = {Video.Status.UPLOADED, Video.Status.PROCESSING}
    busy = any(video.status in unfinished for video in videos)
    return render(request, "videos/list.html", {"rows": rows, "busy": busy})


def upload(request: HttpRequest) -> HttpResponse:
    form = UploadForm(request.POST or None, request.FILES or None)
    if not form.is_valid():
        return render(request, "videos/upload.html", {"form": form})
    video = form.save()
    transcode.delay_on_commit(video.pk)
    messages.success(request, f"“{video.title}” is uploaded and will be ready soon.")
    return redirect("videos:list")


def video_detail(request: HttpRequest, pk: int) -> HttpResponse:
    return render(request, "videos/detail.html", {"video": get_object_or_404(Video, pk=pk)})


@require_POST
def start(request: HttpRequest, pk: int) -> HttpResponse:
    """Send the job once more. Harmless at any time: the lock and the row decide."""
    video = get_object_or_404(Video, pk=pk)
    transcode.delay_on_commit(video.pk)
    messages.info(request, f"“{video.title}” was sent to the workers.")
    return redirect("videos:list")


def order_list(request: HttpRequest) -> HttpResponse:
    orders = Order.objects.prefetch_related("payments")
    return render(request, "videos/orders.html", {"orders": orders})


@require_POST
def pay(request: HttpRequest, pk: int) -> HttpResponse:
    order = get_object_or_404(Order, pk=pk)
    try:
        payment = pay_order(order.pk)
    except LockNotAcquired:
        messages.warning(request, f"The payment for “{order}” is still under way.")
    except (StoreUnavailable, LeaseLost):
        # Before the charge, or after it: a block that has done its work may find at its end that
        # Redis is gone. Only the row knows, and where it is open, a charge may be under way.
        order.refresh_from_db()
        if order.status == Order.Status.PAID:
            messages.success(request, f"Thank you: “{order}” is paid.")
        else:
            messages.error(
                request,
                f"Whether “{order}” could be paid is not known just now. "
                "Look again in a minute: you are not charged twice.",
            )
    else:
        if payment:
            messages.success(request, f"Thank you: {payment.amount} paid for “{order}”.")
        else:
            messages.info(request, f"“{order}” was paid before. You were not charged again.")
    return redirect("videos:orders")
