"""Checks the certificate and its private key, two PEM files, before anything is started."""

from __future__ import annotations

from wakeboard.config.settings import Settings, SettingsError


def check(settings: Settings) -> None:
    """Raise SettingsError when the dashboard has a certificate of its own that cannot be used."""
    certificate, key = settings.certificate, settings.certificate_key
    if certificate is None:
        return
    # Imported here, because most commands do not need it.
    import ssl

    files = " and ".join(dict.fromkeys(str(file) for file in (certificate, key) if file))
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # Without this callback OpenSSL asks for the passphrase on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as wrong:
        # OpenSSL names no reason where it found nothing to read.
        reason = f" ({wrong.reason})" if wrong.reason else ""
        raise SettingsError(
            f"WAKEBOARD_CERTIFICATE: {files} must hold a certificate and its private key, both in PEM, "
            f"the key without a passphrase{reason}."
        ) from wrong
    except OSError as wrong:
        raise SettingsError(f"WAKEBOARD_CERTIFICATE: cannot read {files}: {wrong.strerror}.") from wrong
