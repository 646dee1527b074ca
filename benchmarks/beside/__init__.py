"""This tree beside another commit: ``make beside REF=...``."""
