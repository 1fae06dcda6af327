"""The web port: HTTP sessions, events, and what is served beside messages."""
