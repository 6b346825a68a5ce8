"""What is stored, as values: references, entries, tree nodes, chunk lists and commits."""
