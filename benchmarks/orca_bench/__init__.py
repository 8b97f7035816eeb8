"""Benchmarks: load on OpenAI-compatible servers, engine measurements, and the simulator."""
