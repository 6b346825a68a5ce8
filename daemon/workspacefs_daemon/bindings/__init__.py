"""Bindings: they translate between a wire and the vfs, and decide nothing."""
