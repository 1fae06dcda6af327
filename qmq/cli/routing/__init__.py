"""Commands about exchanges and bindings."""
