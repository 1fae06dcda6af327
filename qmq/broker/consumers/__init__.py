"""Clients and peers that take messages: subscriptions, credit, buffers, sessions, and the effects sent to them."""
