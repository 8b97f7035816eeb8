"""What several test folders share: checkpoints, engines of real worker processes, served models."""
