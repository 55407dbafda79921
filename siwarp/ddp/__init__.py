"""The DDP layer: data placement. It has no Python part yet; its C interface is ddp.h."""
