"""Measurements of workspacefs beside ext4 and JuiceFS; run with `python -m bench`.

Nothing imports this package: it is neither installed nor part of any test.
"""
