"""Lost work, uniqueness in the queue and follow-up runs, with real workers and brokers."""
