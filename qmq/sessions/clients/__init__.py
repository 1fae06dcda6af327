"""Client connections from accept to close: admission, login, rights, session, buffers."""
