"""Who signs commits, and whose signatures count: keys in files, and Ed25519 in one module."""
