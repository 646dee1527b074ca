"""The permissions of `Lock`, ``view_lock`` and ``delete_lock``; and the table of `DatabaseStore`.

Sites with another store have that table too, and it stays empty.
"""

from typing import Any

from django.db import migrations, models

from ..models import ExactCharField

LOCK_OPTIONS = {
    "verbose_name": "lock",
    "verbose_name_plural": "locks",
    "managed": False,
    "base_manager_name": "objects",
    "default_permissions": ("view", "delete"),
}
LEASE_FIELDS: list[Any] = [
    ("name", ExactCharField(editable=False, max_length=255, primary_key=True, serialize=False)),
    ("token", ExactCharField(editable=False, max_length=22)),
    ("version", ExactCharField(editable=False, max_length=64)),
    ("record", models.TextField(editable=False)),
    ("expires", models.BigIntegerField(editable=False)),
    ("began", models.BigIntegerField(editable=False)),
    ("fence", models.BigIntegerField(editable=False)),
]
LEASE_OPTIONS = {
    "db_table": "django_tasklock_lease",
    "default_permissions": (),
    "indexes": [models.Index(fields=["expires", "fence"], name="tasklock_lease_expires")],
}


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        # Without fields: it has no table, and Django compares none of an unmanaged model.
        migrations.CreateModel(name="Lock", fields=[], options=LOCK_OPTIONS),
        migrations.CreateModel(name="LeaseRow", fields=LEASE_FIELDS, options=LEASE_OPTIONS),
    ]
