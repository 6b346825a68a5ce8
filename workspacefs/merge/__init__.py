"""Merging two trees over a third: no side is ever lost, and nothing is decided silently."""
