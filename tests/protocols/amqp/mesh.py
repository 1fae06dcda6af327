"""A mesh whose nodes serve AMQP clients, too."""

from typing import Any

from qmq.config import Address, ListenerSettings, NodeSettings
from tests.node.mesh_rig import MeshRig, host_of
from tests.protocols.amqp.rig import AMQP_PORT, AmqpClient


class AmqpMesh(MeshRig):
    """See `MeshRig`."""

    def settings(self, name: str) -> NodeSettings:
        address = Address(host_of(self.names.index(name)), AMQP_PORT)
        return super().settings(name).replace({"amqp": (ListenerSettings(address=address),)})

    async def client(self, name: str, **options: Any) -> AmqpClient:
        """A logged-in client of one node, with channel 1."""
        client = AmqpClient(await self.fabric.dial("10.0.0.1", host_of(self.names.index(name)), AMQP_PORT))
        await client.log_in(**options)
        await client.channel()
        return client
