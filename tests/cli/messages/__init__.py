"""Commands that send, listen to, and look at messages."""
