"""What is valuable and slow: ``make nightly`` runs it, and ``make test`` does not."""
