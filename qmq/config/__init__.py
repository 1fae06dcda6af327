"""The operator's files: a node file (optional) and a peers file, read once, checked as a whole, then frozen.

    address      host:port in text
    model        the base of all sections, and their types
    limits       every bound of a node
    destinations policies of destinations, and which one applies to a name
    node         NodeSettings, the node file
    users        users, permissions, and limits of users
    authentication  which authenticators are asked about a login
    peers        PeersFile, and whether a node may change from one to another
    declared     queues, exchanges and bindings
    diagnostics  errors in words, with file and line (`toml_lines`)
    secrecy      files with secrets that other users can read
    load         read files into settings
    show         write settings as TOML
    definition_values  policies, users, permissions and limits as definitions of the mesh have them
    fingerprints short hashes by which nodes compare their policies
    difference   differences between two configurations, and which need a restart

No other part of QMQ reads a settings file or an environment variable, or has defaults of its own.
"""

from .authentication import AuthenticationSettings as AuthenticationSettings
from .authentication import asks_others as asks_others
from .authentication import asks_users as asks_users
from .definition_values import check_policies as check_policies
from .definition_values import join_declared as join_declared
from .definition_values import join_policies as join_policies
from .definition_values import limit_values as limit_values
from .definition_values import name_limit as name_limit
from .definition_values import name_permission as name_permission
from .definition_values import permission_name as permission_name
from .definition_values import permission_values as permission_values
from .definition_values import policy_values as policy_values
from .definition_values import queue_values as queue_values
from .definition_values import read_limit as read_limit
from .definition_values import read_permission as read_permission
from .definition_values import read_policy as read_policy
from .definition_values import read_queue as read_queue
from .definition_values import read_user as read_user
from .definition_values import split_permission as split_permission
from .definition_values import user_values as user_values
from .destinations.declared import DECLARED_BY as DECLARED_BY
from .destinations.declared import QUEUE_KEYS as QUEUE_KEYS
from .destinations.declared import BindingEntry as BindingEntry
from .destinations.declared import ExchangeEntry as ExchangeEntry
from .destinations.declared import QueueEntry as QueueEntry
from .destinations.declared import QueueLifetime as QueueLifetime
from .destinations.fingerprints import fingerprints_of as fingerprints_of
from .destinations.policy import MESSAGE_SCHEMA as MESSAGE_SCHEMA
from .destinations.policy import SCHEMA_NAME_RULE as SCHEMA_NAME_RULE
from .destinations.policy import DestinationPolicy as DestinationPolicy
from .destinations.policy import is_exchange as is_exchange
from .destinations.policy import is_schema_name as is_schema_name
from .destinations.policy import last_queue as last_queue
from .destinations.settings import DestinationSettings as DestinationSettings
from .difference import Change as Change
from .difference import difference as difference
from .difference import peers_difference as peers_difference
from .limits import LimitSettings as LimitSettings
from .listeners import BeanstalkListenerSettings as BeanstalkListenerSettings
from .listeners import HttpListenerSettings as HttpListenerSettings
from .listeners import ListenerSettings as ListenerSettings
from .listeners import TlsSettings as TlsSettings
from .load import check_together as check_together
from .load import load as load
from .load import load_node as load_node
from .load import load_peers as load_peers
from .node import DEFAULT_HTTP as DEFAULT_HTTP
from .node import MeshSettings as MeshSettings
from .node import NodeSettings as NodeSettings
from .node import StorageSettings as StorageSettings
from .peers import Peer as Peer
from .peers import PeersFile as PeersFile
from .peers import check_change as check_change
from .secrecy import check_secrecy as check_secrecy
from .secrecy import is_open_to_others as is_open_to_others
from .show import effective as effective
from .users import LOCAL_ADMINISTRATOR as LOCAL_ADMINISTRATOR
from .users import RESERVED_NAMES as RESERVED_NAMES
from .users import PermissionSettings as PermissionSettings
from .users import User as User
from .users import UserLimitSettings as UserLimitSettings
from .values.address import Address as Address
from .values.address import parse_address as parse_address
