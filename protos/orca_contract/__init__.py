"""The contract between operator and engine master, as code (docs/contracts.md, section 8).

message.py: the base class and the rules of versions; topology.py, scheduler.py, state.py: the messages; reasons.py: the
closed list of reasons; routes.py: paths of the admin and the probe port; kv_blocks.py: the size of a K/V block;
rank_environment.py: the variables that a topology may set in ranks. The package needs no gRPC and no protobuf, which
the operator's image does not contain.
"""
