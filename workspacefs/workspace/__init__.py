"""Whole workspaces: create, open, import, publish, export, read history. Synchronous, silent."""
