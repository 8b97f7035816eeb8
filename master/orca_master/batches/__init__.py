"""Files and batches of /v1/files and /v1/batches: what is stored in a folder, and the runner that answers the lines."""
