"""Layers: the uncommitted changes of a session, on local disk, over a base commit."""
