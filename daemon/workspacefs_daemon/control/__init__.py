"""The control side of daemons: who may ask what, and how they are answered."""
