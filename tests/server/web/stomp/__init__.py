"""STOMP over WebSocket, SockJS and long polling."""
