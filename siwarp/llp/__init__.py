"""The lower layer: UDP and TCP sockets. It has no Python part yet; see llp.h for its API."""
