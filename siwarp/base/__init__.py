"""What every layer may use, without the C library."""
