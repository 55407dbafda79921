"""The layer of sockets, UDP and TCP. It has no part in Python yet; its contract is llp.h."""
