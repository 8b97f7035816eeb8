"""API processes (`--api-processes`), which run the endpoint, and their link to the master."""
