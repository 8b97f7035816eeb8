"""A worker: one controller process (gRPC, no torch) and one rank process per intra-layer partition."""
