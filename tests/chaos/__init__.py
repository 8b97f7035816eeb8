"""Faults of every kind under a server with streaming clients: `make chaos`, and a short form in tests/system."""
