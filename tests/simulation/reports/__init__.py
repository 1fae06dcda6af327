"""From runs to what people read: traces, sums over seeds, reduced scripts, planted bugs that are found."""
