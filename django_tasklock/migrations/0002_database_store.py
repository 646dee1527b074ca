"""The table of `DatabaseStore`. Sites with another store have it too, and it stays empty."""

from django.db import migrations, models

from ..models import ExactCharField


class Migration(migrations.Migration):
    dependencies = [("django_tasklock", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="LeaseRow",
            fields=[
                (
                    "name",
                    ExactCharField(
                        editable=False, max_length=255, primary_key=True, serialize=False
                    ),
                ),
                ("token", ExactCharField(editable=False, max_length=22)),
                ("version", ExactCharField(editable=False, max_length=64)),
                ("record", models.TextField(editable=False)),
                ("expires", models.BigIntegerField(editable=False)),
                ("began", models.BigIntegerField(editable=False)),
                ("fence", models.BigIntegerField(editable=False)),
            ],
            options={
                "db_table": "django_tasklock_lease",
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["expires", "fence"], name="tasklock_lease_expires")
                ],
            },
        ),
    ]
