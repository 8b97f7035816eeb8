"""Checkpoints whose files have quantised weights: GPTQ, AWQ and compressed-tensors, one file each."""
