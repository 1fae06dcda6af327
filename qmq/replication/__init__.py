"""Moving records between nodes until every node holds them, and topics and queue messages to those who want them."""
