"""Utilities for all layers that do not need the C library."""
