"""The operator's files: a node file (optional) and a peers file, read once, checked as a whole, frozen afterwards.

    address      host:port as people write it
    model        what all sections share
    limits       every bound of a node
    destinations policies of destinations, and which one counts for a name
    node         NodeSettings, the node file
    peers        PeersFile
    toml_lines   where in the text a key stands
    mistakes     what is wrong, in words
    secrecy      files with secrets that others could read
    load         files in, settings out
    show         settings out, as TOML
    peers_change whether one peers file may follow another
    prints       short hashes of the policies, by which nodes compare theirs
    difference   what differs between two, and what of it needs a restart

Nothing else in the package reads a file of settings, an environment variable or a default of its own.
"""

from .address import Address as Address
from .address import parse_address as parse_address
from .destinations import DestinationPolicy as DestinationPolicy
from .destinations import DestinationSettings as DestinationSettings
from .difference import Change as Change
from .difference import difference as difference
from .difference import peers_difference as peers_difference
from .limits import LimitSettings as LimitSettings
from .load import check_together as check_together
from .load import load as load
from .load import load_node as load_node
from .load import load_peers as load_peers
from .node import CONTROLS as CONTROLS
from .node import Control as Control
from .node import ListenerSettings as ListenerSettings
from .node import MeshSettings as MeshSettings
from .node import NodeSettings as NodeSettings
from .node import StorageSettings as StorageSettings
from .node import TlsSettings as TlsSettings
from .node import User as User
from .peers import Peer as Peer
from .peers import PeersFile as PeersFile
from .peers_change import check_change as check_change
from .prints import prints_of as prints_of
from .secrecy import check_secrecy as check_secrecy
from .secrecy import is_open_to_others as is_open_to_others
from .show import effective as effective
