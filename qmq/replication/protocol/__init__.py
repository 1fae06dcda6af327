"""What travels over a link: handshake, frames, values, and the state of one conversation."""
