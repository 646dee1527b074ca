"""What the command and the admin share."""
