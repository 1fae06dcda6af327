"""Foreign words to broker calls, and what follows from them back into foreign words."""
