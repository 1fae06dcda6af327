"""The selector language: qmq.broker.selectors."""
