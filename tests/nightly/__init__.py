"""What is valuable and slow: ``pytest --nightly`` runs it, and a plain run leaves it out."""
