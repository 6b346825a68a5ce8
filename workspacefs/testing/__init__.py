"""Fakes and builders for tests; part of the package so that other projects can use them."""
