"""The binding to pyfuse3. Nothing outside this package imports pyfuse3."""
