"""The engine master: endpoint, request pool, scheduler and engine. No torch in this process."""
