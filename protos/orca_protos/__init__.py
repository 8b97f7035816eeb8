"""Messages and stubs generated from protos/*.proto by `make protos`, and code that master and workers share."""
