"""Tests, by what they are made of."""
