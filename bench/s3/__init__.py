"""Workspaces in an S3 store behind a slow link, beside what else mounts one."""
