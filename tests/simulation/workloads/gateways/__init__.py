"""Clients that speak AMQP and beanstalkd."""
