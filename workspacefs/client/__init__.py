"""Talking to the daemons from a synchronous program: finding, starting and asking them."""
