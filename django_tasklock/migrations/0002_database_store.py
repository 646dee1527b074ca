"""The tables of `DatabaseStore`. Sites with another store have them too, and they stay empty."""

from django.db import migrations, models

from ..models import ExactCharField


class Migration(migrations.Migration):
    dependencies = [("django_tasklock", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="LeaseRow",
            fields=[
                (
                    "lock_key",
                    ExactCharField(
                        editable=False, max_length=255, primary_key=True, serialize=False
                    ),
                ),
                ("token", ExactCharField(editable=False, max_length=22)),
                ("expires", models.BigIntegerField(editable=False)),
                ("acquired", models.BigIntegerField(editable=False)),
                ("fence", models.BigIntegerField(editable=False)),
                ("owner", models.TextField(editable=False)),
            ],
            options={
                "db_table": "django_tasklock_lease",
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["expires", "fence"], name="tasklock_lease_expires")
                ],
            },
        ),
        migrations.CreateModel(
            name="WaiterRow",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("lock_key", ExactCharField(editable=False, max_length=255)),
                ("token", ExactCharField(editable=False, max_length=22)),
                ("alive", models.BigIntegerField(editable=False)),
                ("owner", models.TextField(editable=False)),
            ],
            options={
                "db_table": "django_tasklock_waiter",
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["lock_key", "id"], name="tasklock_waiter_queue"),
                    models.Index(fields=["alive"], name="tasklock_waiter_alive"),
                ],
            },
        ),
    ]
