"""The command line. Starts in about 10 ms beyond Python itself: see main.py for how."""
