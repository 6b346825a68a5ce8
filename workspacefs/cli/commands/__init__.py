"""One module for each command, loaded when that command is given.

Each has EXAMPLE (text for --help), `configure(parser)` and `run(options, context)`, which returns
the document that --json prints.
"""
