"""What users and addresses use of one node, and what they hold in it, against their limits."""
