"""``manage.py locks``: its arguments, its verbs, and how it shows what they find."""
