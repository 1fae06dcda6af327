"""Types of values in the files: sizes, times, names, and the section that holds them."""
