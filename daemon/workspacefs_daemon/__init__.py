"""The daemons of workspacefs: a supervisor, and one session process for each mount."""
