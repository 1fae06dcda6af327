"""WebSocket (RFC 6455) as a sans-IO codec of the server's side, without extensions.

`accept` judges the request that opens a connection, `WebSocketFrames` reads and writes the frames that follow.

The frames are decoded here and not by wsproto: that takes 14 µs for each message of 200 bytes, and this takes less than
3 µs. The tests compare the two. Only the masks are removed by a library, with a C function of `websockets`: by Python's
integers that was most of the work.
"""

from qmq.protocols.http.websocket.frames import WebSocketFrames as WebSocketFrames
from qmq.protocols.http.websocket.frames import WebSocketInput as WebSocketInput
from qmq.protocols.http.websocket.frames import WebSocketLimits as WebSocketLimits
from qmq.protocols.http.websocket.handshake import accept as accept
