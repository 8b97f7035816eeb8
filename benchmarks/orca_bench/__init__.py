"""Measuring: load against any OpenAI-compatible server (`orca bench serve`), and what is made of the figures."""
