"""What is valuable and slow: `make nightly` runs it, `make test` leaves it out."""
