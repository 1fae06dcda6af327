"""A STOMP client for a mesh: sends until receipted, follows fanouts exactly once, outlives its nodes (docs/client.md).

`connect` is where it begins. What decides (`core` and what it uses) is pure; what runs (`runner`, `client`) is thin.
"""

from qmq.client.client import Client as Client
from qmq.client.client import Statistics as Statistics
from qmq.client.client import connect as connect
from qmq.client.message import Message as Message
from qmq.client.message import Receipt as Receipt
from qmq.client.subscription import Subscription as Subscription
from qmq.client.transaction import Transaction as Transaction
