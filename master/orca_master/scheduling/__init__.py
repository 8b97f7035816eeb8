"""Requests, the request pool, and Algorithm 1 with its K/V ledger. Pure: no I/O, no clock, no asyncio."""
