"""A mesh whose nodes serve beanstalkd clients, too."""

from qmq.config import Address, NodeSettings
from qmq.protocols.beanstalk.listener import BeanstalkListenerSettings
from tests.node.mesh_rig import MeshRig, host_of
from tests.protocols.beanstalk.rig import BEANSTALK_PORT, BeanstalkClient


class BeanstalkMesh(MeshRig):
    """See `MeshRig`."""

    def settings(self, name: str) -> NodeSettings:
        address = Address(host_of(self.names.index(name)), BEANSTALK_PORT)
        return super().settings(name).replace({"beanstalk": (BeanstalkListenerSettings(address=address),)})

    async def client(self, name: str) -> BeanstalkClient:
        """A client of one node."""
        host = host_of(self.names.index(name))
        return BeanstalkClient(await self.fabric.dial("10.0.0.1", host, BEANSTALK_PORT))
