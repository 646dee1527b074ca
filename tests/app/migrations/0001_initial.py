from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    operations = [
        migrations.CreateModel(
            name="Job",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("status", models.CharField(db_index=True, default="queued", max_length=20)),
                ("lock_fence", models.BigIntegerField(blank=True, null=True)),
                ("result_file", models.CharField(blank=True, max_length=200, null=True)),
                ("done_count", models.PositiveIntegerField(default=0)),
            ],
        ),
    ]
