"""The queue store on SQLite, PostgreSQL or in memory."""
