"""What every other room speaks of: dots and vectors, members, cursors, levels, deletions, lost ranges, names."""
