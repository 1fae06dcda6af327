"""What a node responds to requests of its peers about jobs and tubes."""

import json

from qmq.errors import Refused
from qmq.server.beanstalk.part import PartContext, part_of
from qmq.server.beanstalk.statistics import facts_here
from qmq.server.peers.peer_json import decode_json


async def respond_about_jobs(context: PartContext, body: bytes) -> bytes:
    """The response to the request of a peer. Raises Refused."""
    part = part_of(context)
    try:
        asked = decode_json(body)
        answer = await part.jobs.answer(asked)
        if answer is None and asked["do"] == "pause":
            part.pause(str(asked["tube"]), int(asked["seconds"]))
            answer = {}
        elif answer is None:
            answer = await facts_here(context, part, asked)
    except (ValueError, KeyError, TypeError) as error:
        raise Refused("bad-body", "this is no request about jobs") from error
    return json.dumps(answer).encode()
