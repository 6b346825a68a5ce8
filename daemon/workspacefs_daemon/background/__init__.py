"""What goes on beside the requests: thread hops, and making work durable."""
