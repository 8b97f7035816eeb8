"""The journal of accepted requests, from which a restarted master finishes them."""
