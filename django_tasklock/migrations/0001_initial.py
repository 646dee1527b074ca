"""No table is made: the model is here for its permissions, ``view_lock`` and ``delete_lock``."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Lock",
            fields=[
                (
                    "id",
                    models.CharField(
                        max_length=512, primary_key=True, serialize=False, editable=False
                    ),
                ),
                ("name", models.CharField(max_length=200, verbose_name="name", editable=False)),
                ("store", models.CharField(max_length=255, verbose_name="store", editable=False)),
            ],
            options={
                "verbose_name": "lock",
                "verbose_name_plural": "locks",
                "managed": False,
                "base_manager_name": "objects",
                "default_permissions": ("view", "delete"),
            },
        ),
    ]
