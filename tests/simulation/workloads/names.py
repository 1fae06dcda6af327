"""The destinations that clients use, so that workloads and checks speak of the same ones."""

FANOUTS = ("/fanout/a", "/fanout/b")
QUEUES = ("/queue/x", "/queue/y")
"""Messages of the second have groups."""

INSISTED = "/fanout/insisted"
"""Its messages have dedup ids and are sent until they are receipted."""

INSISTED_QUEUE = "/queue/insisted"
"""The same, and its consumers come when every node has the records of all others."""

POISON = "/queue/poison"
"""What nobody can process."""

TIMED = "/queue/timed"
"""What is of no use after a moment."""

DEAD = "/queue/dead-letters"

HELD = "/queue/held"
"""Its consumers keep what they have for seconds."""

EXCLUSIVE = "/queue/exclusive"
GROUPED = "/queue/grouped"
"""Two that have a backlog at the nodes of their consumers."""

SHARED = "/queue/shared"
"""Its messages have groups, and its consumers come and go while nodes have faults."""

VHOST = "shop"
"""A virtual host beside `/`."""

AMQP_QUEUES = {"/": "/queue/amqp", VHOST: f"/queue/{VHOST}~amqp"}
"""Virtual host → the queue of AMQP clients in there. They have the same name for their clients."""

OWNED = "/queue/owned-"
"""The names of exclusive queues begin so, unless a node makes them up."""

MADE_UP = "/queue/amq.gen"

TUBE = "/queue/tube"
"""That of beanstalkd clients."""

TUBES = (TUBE, f"{TUBE}.buried")

TOPICS = ("/topic/t",)
VALUE = "/topic/value"
"""Every message to it is its last value."""

ROLL = "/topic/roll"
"""Used once, when everything else has ended."""
