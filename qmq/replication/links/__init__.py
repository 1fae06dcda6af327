"""Links in motion: dialling, listening, both halves of a link, and routes over them."""
