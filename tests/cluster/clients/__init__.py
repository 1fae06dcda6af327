"""Clients of the project and of others on three nodes: Python, HTTP, AMQP, beanstalkd, Celery."""
