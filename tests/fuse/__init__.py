"""Tests: fuse."""
