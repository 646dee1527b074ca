from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest

from example_project.videos.models import DailyReport, Order, Payment, Video
from example_project.videos.tasks import transcode


@admin.register(Video)
class VideoAdmin(admin.ModelAdmin):
    list_display = ["title", "status", "hls_file", "lock_fence", "updated_at"]
    list_filter = ["status"]
    search_fields = ["title"]
    readonly_fields = ["status", "hls_file", "thumbnail", "lock_fence", "created_at", "updated_at"]
    actions = ["send_to_workers", "start_over"]

    def save_model(
        self, request: HttpRequest, obj: Video, form: ModelForm[Video], change: bool
    ) -> None:
        if not change:
            super().save_model(request, obj, form, change)
            transcode.delay_on_commit(obj.pk)
        else:
            # Only what was edited: a worker may have moved the row on since this page was loaded,
            # and a plain save() would overwrite its status with the old one.
            obj.save(update_fields=[*form.changed_data, "updated_at"])

    @admin.action(description="Send selected videos to the workers")
    def send_to_workers(self, request: HttpRequest, queryset: QuerySet[Video]) -> None:
        for pk in queryset.values_list("pk", flat=True):
            transcode.delay_on_commit(pk)
        self.message_user(request, "Sent. Those that are done or running will be skipped.")

    @admin.action(description="Transcode selected failed videos again")
    def start_over(self, request: HttpRequest, queryset: QuerySet[Video]) -> None:
        failed = list(queryset.filter(status=Video.Status.FAILED).values_list("pk", flat=True))
        Video.objects.filter(pk__in=failed, status=Video.Status.FAILED).update(
            status=Video.Status.UPLOADED, hls_file=None, thumbnail=None
        )
        for pk in failed:
            transcode.delay_on_commit(pk)
        self.message_user(request, f"{len(failed)} sent.")


class PaymentInline(admin.TabularInline):
    model = Payment
    extra = 0
    max_num = 0
    can_delete = False
    readonly_fields = ["reference", "amount", "created_at"]


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ["title", "amount", "status", "created_at"]
    list_filter = ["status"]
    readonly_fields = ["status"]
    inlines = [PaymentInline]


@admin.register(Payment)
class PaymentAdmin(admin.ModelAdmin):
    list_display = ["reference", "order", "amount", "created_at"]
    readonly_fields = ["order", "reference", "amount", "created_at"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(DailyReport)
class DailyReportAdmin(admin.ModelAdmin):
    list_display = ["date", "videos_ready", "income", "created_at"]
