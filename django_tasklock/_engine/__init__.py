"""The lock service and its parts: acquire, wait, renew, release."""
