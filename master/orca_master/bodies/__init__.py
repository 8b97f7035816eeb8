"""Parsing and validation of request bodies, with limits of memory and time."""
