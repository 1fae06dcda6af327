"""Real nodes under fire for minutes: stock clients and ours at work, faults drawn by a seed, a checker, a page.

`make nemesis MINUTES=30` runs it and writes the page; a short run is a chapter of tests/cluster. See docs/testing.md.
"""
