"""`qmq bench`: what it measures, prints and writes into pages."""
