"""What a node can say of its messages, connections and subscriptions, by itself."""
