"""The code and the commands of the pages, run as they are written."""
