"""The log as Spark reads it: places, plans, parts and ranges."""
