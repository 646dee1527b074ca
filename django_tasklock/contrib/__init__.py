"""Optional apps for INSTALLED_APPS. Nothing else in the package imports them."""
