"""Generated messages and stubs of protos/engine.proto (`make protos` writes them anew)."""
