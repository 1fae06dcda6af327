"""`[[beanstalk]]` in the node file."""

from typing import Final

from qmq.protocols.declaration import Declaration, LoginlessListenerSettings
from qmq.section import Size


class BeanstalkListenerSettings(LoginlessListenerSettings):
    """One `[[beanstalk]]`: an address for beanstalkd clients, which do not log in."""

    job_bytes_max: Size = 65_535
    """Of the body of a job; `limits.body_bytes_max` counts, too."""


REQUEST: Final = "beanstalk"
"""Of one node to another: jobs by their ids, and facts about tubes."""

DECLARATION: Final = Declaration("beanstalk", "beanstalkd", BeanstalkListenerSettings, requests=(REQUEST,))
