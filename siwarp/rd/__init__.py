"""Reliable datagrams: epochs, windows, congestion control, path MTU."""
