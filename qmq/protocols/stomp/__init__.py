"""STOMP sessions: login, heartbeats, and the loop that decides frames."""
