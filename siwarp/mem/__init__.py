"""STags, receive queues, scatter/gather elements, atomics on memory."""
