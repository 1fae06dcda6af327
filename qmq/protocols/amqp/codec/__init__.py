"""AMQP 0-9-1 as bytes: frames and contents, methods, tables, and what is refused.

Pure. Methods and tables are those of the library pamqp; frames, and the methods of each message, are read and written
here, because they are what a busy connection consists of.
"""
