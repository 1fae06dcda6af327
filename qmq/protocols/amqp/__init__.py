"""Sessions that speak AMQP 0-9-1: login, channels, and the verbs that methods ask for."""
