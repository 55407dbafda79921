"""The software RNIC: progress, timers, threads, and the objects of a device."""
