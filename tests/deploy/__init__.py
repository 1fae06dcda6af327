"""The files that a mesh is deployed with."""
