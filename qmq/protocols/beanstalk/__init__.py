"""Clients that speak the beanstalkd protocol, and the jobs of the mesh as they see them."""
