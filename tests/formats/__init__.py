"""What versions have written, as files; each later version must read them."""
