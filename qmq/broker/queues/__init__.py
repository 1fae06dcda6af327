"""Queues: intake, dispatch, settlement, redelivery, expiry and dead letters of queue messages."""
