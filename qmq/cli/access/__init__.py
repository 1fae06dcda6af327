"""Commands about users and permissions of a mesh."""
