"""How queue pairs meet: listeners, MPA start-up, pairing by GID and QPN, resolution over UDP."""
