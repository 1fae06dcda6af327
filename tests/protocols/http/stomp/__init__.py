"""STOMP over WebSocket and long poll."""
