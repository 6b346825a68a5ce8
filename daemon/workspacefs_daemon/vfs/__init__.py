"""File-system semantics of a session: inodes, names, bodies. Knows no FUSE and no event loop."""
