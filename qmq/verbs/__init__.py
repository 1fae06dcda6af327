"""Control verbs, each declared once: its form, options, rights, audit and help. `table` has all of them."""
