"""The commands `orca serve`, `orca master` and `orca drain`, their options and configuration files."""
