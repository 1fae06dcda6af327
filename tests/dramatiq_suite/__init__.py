"""dramatiq's own tests, over this broker."""
