"""QMQ: a masterless mesh of equal message-broker nodes for any STOMP client."""

__version__ = "0.1.0"
