"""Directories as Merkle B-trees: build, edit, look up, walk and compare."""
