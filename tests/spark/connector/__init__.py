"""The data source and the sink: options, plans, columns, and reading from directories and live nodes."""
