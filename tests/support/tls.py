"""Certificates of an authority of a test's own."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from clew.local.child import LOOPBACK


def make_certificates(folder: Path) -> ssl.SSLContext:
    """Make an authority, in `ca.crt`, and its certificate of a server on loopback, in `server.pem`, with the key."""
    now = datetime.datetime.now(datetime.UTC)
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("authority", "server")}
    made = {}
    for name, key in keys.items():
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(
            now + datetime.timedelta(days=1)
        )
        builder = builder.add_extension(x509.BasicConstraints(name == "authority", None), critical=True)
        if name == "server":
            names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(LOOPBACK))])
            builder = builder.add_extension(names, critical=False)
        made[name] = builder.sign(keys["authority"], SHA256()).public_bytes(Encoding.PEM)
    (folder / "ca.crt").write_bytes(made["authority"])
    (folder / "server.pem").write_bytes(
        keys["server"].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + made["server"]
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context
