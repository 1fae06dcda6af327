"""Commands about users, permissions and limits of a mesh."""
