"""An S3 server on loopback, and the environment that leads to it."""

import logging
from collections.abc import Iterator

import pytest

AWS_SECRET = "not-for-any-file-a7f3"


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A folder in a bucket, as a URI. The variables of AWS name the server, also for child processes."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", AWS_SECRET)
        patch.setenv("AWS_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        from pyarrow.fs import FileSystem

        store, folder = FileSystem.from_uri("s3://bucket/runs?allow_bucket_creation=true")
        store.create_dir(folder)
        yield "s3://bucket/runs"
    server.stop()
