"""The RDMAP layer: operations and their errors. Its contract is rdmap.h; all code is C."""
