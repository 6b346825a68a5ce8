"""An S3 store behind TLS: certificates are checked, and only the given ones are trusted."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.clocks import TurnedClock
from tests.faults.s3_store import new_backend
from workspacefs.errors import UnavailableError

pytestmark = pytest.mark.usefixtures("s3_environ")


class OneValue(BaseHTTPRequestHandler):
    """Answers every GET with one value."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("ETag", '"x"')
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"value")

    def log_message(self, format: str, *args: object) -> None:
        pass


def write_certificate(path: Path) -> None:
    """Write a key and a certificate for 127.0.0.1 that nobody but its owner signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    path = tmp_path / "server.pem"
    write_certificate(path)
    return path


@pytest.fixture
def endpoint(certificate: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), OneValue)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_certificate_that_nobody_signed_is_refused(endpoint: str) -> None:
    """At once: trying again would not make it better. The message says what to do."""
    clock = TurnedClock()
    backend = new_backend(f"s3://bucket?endpoint_url={endpoint}", retry=clock.policy())

    with pytest.raises(UnavailableError, match="--ca-bundle") as caught:
        backend.get("k")

    assert caught.value.kind == "store.tls"
    assert not clock.slept


def test_given_certificate_is_trusted(endpoint: str, certificate: Path) -> None:
    """The file of the URL counts."""
    backend = new_backend(f"s3://bucket?endpoint_url={endpoint}&ca_bundle={certificate}")

    assert backend.get("k") == b"value"
