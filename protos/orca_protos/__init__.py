"""Generated messages and stubs of protos/engine.proto (`make protos` writes them anew), and wire.py beside them."""
