"""What the client decides, for every style of program: pure, with bytes and times as arguments."""
