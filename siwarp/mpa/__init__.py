"""The layer of MPA, FPDUs on TCP. It has no part in Python yet; its contract is mpa.h."""
