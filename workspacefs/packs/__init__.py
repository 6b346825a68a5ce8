"""Packs: many chunks and tree nodes in one stored value.

Write with packs.writer.ObjectWriter, read with packs.reader.ObjectStore.
"""
