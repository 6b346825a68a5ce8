"""Bytes by key: a directory or memory. Backends have never heard of chunks, packs or refs."""
