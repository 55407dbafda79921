"""The layer of DDP, placement of data. It has no part in Python yet; its contract is ddp.h."""
