"""Permissions: from a principal, an action and a destination to allow or deny. Pure; every gateway asks here."""
