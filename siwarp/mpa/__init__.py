"""The MPA layer: FPDUs over TCP. It has no Python part yet; its C interface is mpa.h."""
