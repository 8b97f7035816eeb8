"""The engine master: pipelines of workers, driven by the scheduler on a separate thread and event loop."""
