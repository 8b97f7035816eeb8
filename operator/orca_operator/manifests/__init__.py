"""Builders of the objects of one OrcaDeployment: values in, dictionaries out; no I/O, no clock, no randomness."""
