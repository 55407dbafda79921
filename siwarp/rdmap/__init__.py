"""The layer of RDMAP, operations and their errors; its contract is rdmap.h, no part is Python."""
