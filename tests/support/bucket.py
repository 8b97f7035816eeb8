"""A bucket of S3 on a server in this process: moto's, from PyPI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

NAME = "models"


@contextmanager
def bucket() -> Iterator[tuple[Any, dict[str, str]]]:
    """Yield boto3's client, with an empty bucket NAME, and the environment of programs that read from it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }
    client = boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )
    try:
        client.create_bucket(Bucket=NAME)
        yield client, environment
    finally:
        server.stop()
