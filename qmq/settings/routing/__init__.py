"""Exchanges and bindings of the mesh: what their definitions mean to a node, and the requests about them."""
