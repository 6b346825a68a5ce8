"""Tests: posix."""
