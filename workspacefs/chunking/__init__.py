"""Cutting file content into chunks."""
