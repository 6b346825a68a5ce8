"""workspacefs: a durable, versioned workspace that any sandbox can mount.

The library is synchronous; it knows no event loop and no FUSE. Daemons live in workspacefs_daemon.
"""

__version__ = "0.1.0"
