"""The engine master: pipelines of workers, driven by the scheduler on an event loop and a thread of their own."""
