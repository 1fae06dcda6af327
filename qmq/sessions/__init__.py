"""Clients of every protocol: connections, logins, the decision loop, deliveries."""
