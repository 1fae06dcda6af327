"""Commands about the files of a mesh: `qmq init` and `qmq cert`."""
