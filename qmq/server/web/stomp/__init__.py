"""STOMP for browsers and networks without WebSockets: WebSocket, SockJS, and long poll."""
