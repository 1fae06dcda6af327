"""Types of values in the files: addresses, sizes, times, names, and the section that holds them."""
