"""Reaching a store through another process: the transfer process and its clients.

What speaks to a far store costs the interpreter lock and much memory; so one process does it for
all mounted sessions, and they ask it over a Unix socket.
"""
