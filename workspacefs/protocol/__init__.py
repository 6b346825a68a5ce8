"""What clients and daemons say to each other: messages, errors, sockets (docs/protocol.md)."""
