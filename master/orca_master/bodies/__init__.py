"""From the bytes of a request's body to a checked value, within bounds of memory and time."""
