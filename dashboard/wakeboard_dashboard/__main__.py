"""``python -m wakeboard_dashboard``: the dashboard alone, as ``wakeboard web`` starts it."""

from __future__ import annotations

import sys

import click

from wakeboard.alerts.web_watcher import WebWatcher
from wakeboard.config import certificates, log, stop_signals, working_directory
from wakeboard.config.settings import Settings, SettingsError
from wakeboard.config.streams import open_standard_streams


@click.command()
@click.option("--bind", metavar="HOST:PORT", help="Where to listen (WAKEBOARD_BIND, 127.0.0.1:8080).")
@click.option("--database-url", metavar="URL", help="The database (WAKEBOARD_DATABASE_URL).")
def main(bind: str | None, database_url: str | None) -> None:
    """Serve the dashboard until stopped. Exits with 2 when it may not listen there, with 1 when it cannot."""
    log.write_in_background()
    if working_directory.current_folder() is None:
        click.echo(working_directory.MISSING_FOLDER, err=True)
        sys.exit(2)
    # gunicorn asks for the current folder when it is imported.
    from wakeboard_dashboard.app import create_app
    from wakeboard_dashboard.server import serve

    try:
        settings = Settings.load({"bind": bind, "database_url": database_url})
        if settings.database_url is None:
            raise SettingsError(
                "No database: set WAKEBOARD_DATABASE_URL, or run everything with wakeboard up."
            )
        certificates.check(settings)
        encrypted = settings.behind_tls_proxy or settings.certificate is not None
        serve.check_bind(settings.bind, settings.database_url, encrypted=encrypted)
        serve.check_free(settings.bind)
    except (SettingsError, serve.BindRefused) as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    except serve.AddressInUse as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    log.configure(settings.log_format, level=settings.log_level, moves=settings.log_moves)
    log.note(f"Dashboard starts, to listen on {settings.bind}.")
    url = settings.database_url
    serve.run(
        lambda: create_app(settings),
        settings.bind,
        processes=settings.web_processes,
        threads=settings.web_threads,
        certificate=settings.certificate,
        key=settings.certificate_key,
        shutdown_seconds=min(10.0, settings.shutdown_seconds),
        make_watcher=lambda stage: WebWatcher(url, settings, stage),
    )


if __name__ == "__main__":
    stop_signals.record_early_stops()
    stop_signals.unblock()
    open_standard_streams()
    main()
