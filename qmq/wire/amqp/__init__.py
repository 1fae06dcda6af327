"""AMQP 0-9-1 as bytes: frames and contents, methods, tables, and what is refused.

Pure. Methods and tables are those of the library pamqp; frames, and the methods of each message, are read and written
here, because they are what a busy connection consists of.
"""

from .frames import HEARTBEAT as HEARTBEAT
from .frames import PROTOCOL_HEADER as PROTOCOL_HEADER
from .frames import AmqpReader as AmqpReader
from .frames import Command as Command
from .frames import content_frames as content_frames
from .frames import method_frame as method_frame
from .methods import Method as Method
from .methods import commands as commands
from .methods import encode_method as encode_method
from .methods import read_ack as read_ack
from .methods import read_method as read_method
from .methods import read_nack as read_nack
from .methods import read_publish as read_publish
from .methods import short_string as short_string
from .properties import read_properties as read_properties
from .properties import read_table as read_table
from .properties import write_properties as write_properties
from .refusals import AmqpRefusal as AmqpRefusal
from .refusals import ReplyCode as ReplyCode
