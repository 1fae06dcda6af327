"""Commands for a machine: `qmq init`, `qmq cert`, completion of shells, the manual page, `qmq demo`."""
