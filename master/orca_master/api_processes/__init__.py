"""The endpoint in several processes (`--api-processes`), and the link between them and the master."""
