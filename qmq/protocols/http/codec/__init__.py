"""HTTP/1.1 as a sans-IO codec of the server's side.

`HttpConnection` turns bytes into whole requests, and responses into bytes. It knows no resource and no rule of the
broker. h11 parses the heads; what h11 lets pass and other servers read differently is refused here (`head.py`).
Imports point one way: limits, refusals → target, chunked, responses → request → head → connection.
"""

from qmq.protocols.http.codec.connection import HttpConnection as HttpConnection
from qmq.protocols.http.codec.limits import HttpLimits as HttpLimits
from qmq.protocols.http.codec.refusals import HttpRefusal as HttpRefusal
from qmq.protocols.http.codec.request import HttpRequest as HttpRequest
