"""``python -m dashboard``: the dashboard alone, as ``wakeboard web`` starts it."""

from __future__ import annotations

import sys

import click

from dashboard import create_app, serve
from worker import log
from worker.alerts.sentinel import Sentinel
from worker.settings import Settings, SettingsError


@click.command()
@click.option("--bind", metavar="HOST:PORT", help="Where to listen (WAKEBOARD_BIND, 127.0.0.1:8080).")
@click.option("--database-url", metavar="URL", help="The database (WAKEBOARD_DATABASE_URL).")
@click.option("--host", "hosts", multiple=True, help="A further name people reach it by; repeatable.")
@click.option("--behind-tls-proxy", is_flag=True, help="One proxy in front does TLS and sets X-Forwarded-*.")
@click.option(
    "--certificate", type=click.Path(exists=True, dir_okay=False), help="PEM file, for TLS of our own."
)
@click.option("--key", type=click.Path(exists=True, dir_okay=False), help="PEM file with its private key.")
def main(
    bind: str | None,
    database_url: str | None,
    hosts: tuple[str, ...],
    behind_tls_proxy: bool,
    certificate: str | None,
    key: str | None,
) -> None:
    """Serve the dashboard until stopped. Exits with 2 when it may not listen there, 1 when it cannot now."""
    try:
        settings = Settings.load({"bind": bind, "database_url": database_url})
        if settings.database_url is None:
            raise SettingsError(
                "No database: set WAKEBOARD_DATABASE_URL, or run everything with wakeboard up."
            )
        encrypted = behind_tls_proxy or certificate is not None
        serve.check_bind(settings.bind, settings.database_url, encrypted=encrypted)
        serve.check_free(settings.bind)
    except (SettingsError, serve.RefusedBind) as refused:
        click.echo(str(refused), err=True)
        sys.exit(2)
    except serve.TakenBind as taken:
        click.echo(str(taken), err=True)
        sys.exit(1)
    log.configure(settings.log_format)
    url = settings.database_url
    serve.run(
        lambda: create_app(settings, hosts=hosts, behind_tls_proxy=behind_tls_proxy),
        settings.bind,
        certificate=certificate,
        key=key,
        shutdown_seconds=min(10.0, settings.shutdown_seconds),
        make_sentinel=lambda stage: Sentinel(url, settings, stage),
    )


if __name__ == "__main__":
    main()
