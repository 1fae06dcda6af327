"""STOMP for browsers and networks without WebSockets: WebSocket and long poll."""
