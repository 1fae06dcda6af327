"""Fanouts: durable subscriptions and their cursors."""
