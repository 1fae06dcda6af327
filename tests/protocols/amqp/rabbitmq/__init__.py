"""The same scripts at a node and at a RabbitMQ, whose answers were recorded."""
