"""Bindings: which queues get a copy of a message to a topic, a fanout or an exchange."""
