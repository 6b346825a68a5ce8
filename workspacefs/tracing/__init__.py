"""What became of paths and of lines through history: which commits changed them, who wrote them."""
