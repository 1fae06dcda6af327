"""STOMP 1.0, 1.1 and 1.2 as a sans-IO codec.

`Connection` turns bytes into frames, the functions of `writer` turn values into bytes; nothing here knows what a
destination is. Imports only point one way: version, limits → grammar, head, frames → runs → cache, states → reader →
connection.
"""

from qmq.wire.stomp.cache import HeadCache as HeadCache
from qmq.wire.stomp.cache import HeadCaches as HeadCaches
from qmq.wire.stomp.connection import Connection as Connection
from qmq.wire.stomp.frames import Acks as Acks
from qmq.wire.stomp.frames import Frame as Frame
from qmq.wire.stomp.frames import Sends as Sends
from qmq.wire.stomp.head import Head as Head
from qmq.wire.stomp.heartbeat import negotiate_heartbeat as negotiate_heartbeat
from qmq.wire.stomp.heartbeat import parse_heartbeat as parse_heartbeat
from qmq.wire.stomp.limits import BODY_BYTES_CEILING as BODY_BYTES_CEILING
from qmq.wire.stomp.limits import DEFAULT_LIMITS as DEFAULT_LIMITS
from qmq.wire.stomp.limits import Limits as Limits
from qmq.wire.stomp.states import NEXT_STATE as NEXT_STATE
from qmq.wire.stomp.states import Role as Role
from qmq.wire.stomp.states import State as State
from qmq.wire.stomp.version import SUPPORTED_VERSIONS as SUPPORTED_VERSIONS
from qmq.wire.stomp.version import Version as Version
from qmq.wire.stomp.writer import HEARTBEAT as HEARTBEAT
from qmq.wire.stomp.writer import convert_headers as convert_headers
from qmq.wire.stomp.writer import encode_frame as encode_frame
from qmq.wire.stomp.writer import encode_headers as encode_headers
from qmq.wire.stomp.writer import encode_receipts as encode_receipts
