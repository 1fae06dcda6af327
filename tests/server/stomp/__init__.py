"""Sessions that speak STOMP."""
