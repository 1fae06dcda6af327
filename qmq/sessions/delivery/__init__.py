"""Delivery to subscribers: effects to bytes, fanout readers, browsing, retained values, deadlines."""
