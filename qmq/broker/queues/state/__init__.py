"""What is known of one queue and of the messages that this node serves: plain state, without decisions."""
