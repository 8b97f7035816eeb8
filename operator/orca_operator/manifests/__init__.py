"""Builders of the objects of one OrcaDeployment: pure functions that return dictionaries."""
