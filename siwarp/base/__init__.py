"""What every layer may use: here, only what is useful without the C library."""
