"""The operator: turns OrcaDeployments into engine masters and workers. It imports no other part of ORCA."""
