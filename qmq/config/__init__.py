"""The operator's files: a node file (optional) and a peers file, read once, checked as a whole, then frozen.

    limits       every bound of a node
    destinations policies of destinations, and which one applies to a name
    node         NodeSettings, the node file
    users        users, permissions, and limits of users
    old_sections sections of earlier versions, read as definitions
    archives     tables that `qmq archive` fills
    authentication  which authenticators are asked about a login
    peers        PeersFile, and whether a node may change from one to another
    declared     what the declaration of a queue may say
    diagnostics  errors in words, with file and line (`toml_lines`)
    secrecy      files with secrets that other users can read
    load         read files into settings
    certificates what is wrong with the TLS files
    migration    move old sections to `[definitions]` in the text of a file
    show         write settings as TOML
    definition_values  policies, users, permissions and limits as definitions of the mesh have them
    difference   differences between two configurations, and which need a restart

No other part of QMQ reads a settings file or an environment variable, or has defaults of its own.
"""

from qmq.address import Address as Address
from qmq.protocols.declaration import ListenerSettings as ListenerSettings
from qmq.protocols.declaration import TlsSettings as TlsSettings

from .authentication import AuthenticationSettings as AuthenticationSettings
from .destinations.policy import DestinationPolicy as DestinationPolicy
from .destinations.settings import DestinationSettings as DestinationSettings
from .limits import LimitSettings as LimitSettings
from .load import load as load
from .load import load_node as load_node
from .load import load_peers as load_peers
from .node import MeshSettings as MeshSettings
from .node import NodeSettings as NodeSettings
from .node import StorageSettings as StorageSettings
from .peers import Peer as Peer
from .peers import PeersFile as PeersFile
from .users import PermissionSettings as PermissionSettings
from .users import User as User
from .users import UserLimitSettings as UserLimitSettings
