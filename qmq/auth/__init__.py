"""From credentials to a principal: the authenticators that a node asks, one after the other.

    credentials  what a client shows, and what an authenticator makes of it
    jwks         the keys that sign tokens
    tokens       JSON Web Tokens
    callback     a service that decides, asked over HTTP
    plugins      authenticators of other packages: the entry point group `qmq.auth`

All of it blocks, and is called in worker threads, by several at once (`qmq.sessions.clients.authentication`). The
password hashes of users are checked by `qmq.sessions.clients.login`. An authenticator of your own imports from here
(docs/authentication.md).
"""

from qmq.access.rules import Principal as Principal
from qmq.auth.credentials import Credentials as Credentials
from qmq.errors import Refused as Refused
