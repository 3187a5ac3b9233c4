"""Slows down the guessing of passwords, per account and per address; nobody is locked out for good.

An attempt is counted before its password is checked, and taken back when the password was right. So many
attempts at the same moment gain nothing.
"""

from __future__ import annotations

from psycopg import Connection

from wakeboard.core.time.clock_skew import is_ahead

# Failed attempts before the first wait. Many people share an address, so it has more.
FREE_ATTEMPTS = {"user": 10, "ip": 30}
FIRST_WAIT_SECONDS = 60
LONGEST_WAIT_SECONDS = 900

_WAIT = """
make_interval(secs => CASE WHEN f.failures < %(free)s THEN 0 ELSE
    least(%(longest)s, %(first)s * power(2, least(f.failures - %(free)s, 20))) END)
"""
# Quiet for an hour: counting starts again. No row comes back while a wait lasts.
COUNT = f"""
INSERT INTO wakeboard.login_failures AS f (subject) VALUES (%(subject)s)
ON CONFLICT (subject) DO UPDATE SET last_failed_at = now(), failures =
    CASE WHEN f.last_failed_at < now() - interval '1 hour' THEN 1 ELSE f.failures + 1 END
WHERE f.last_failed_at + {_WAIT} <= now() OR {is_ahead("f.last_failed_at")}
RETURNING f.failures
"""
SECONDS_LEFT = f"""
SELECT extract(epoch FROM f.last_failed_at + {_WAIT} - now())::float8
FROM wakeboard.login_failures AS f WHERE f.subject = %(subject)s
"""
REMOVE_ACCOUNT = "DELETE FROM wakeboard.login_failures WHERE subject = %s"
TAKE_BACK = "UPDATE wakeboard.login_failures SET failures = failures - 1 WHERE subject = %s AND failures > 0"
# Guessed names must not pile up.
REMOVE_OLD = """
DELETE FROM wakeboard.login_failures WHERE subject IN (
    SELECT subject FROM wakeboard.login_failures WHERE last_failed_at < now() - interval '1 day'
    LIMIT 100 FOR UPDATE SKIP LOCKED)
"""


class TooManyAttempts(Exception):
    """Too many wrong passwords lately; ``seconds`` is how long to wait before the next attempt."""

    def __init__(self, seconds: float) -> None:
        self.seconds = max(1.0, seconds)
        super().__init__(f"Too many wrong passwords. Try again in {round(self.seconds)} s.")


def count_attempt(connection: Connection, name: str, ip: str | None) -> None:
    """Count an attempt for the account ``name`` from the address ``ip``. Raises TooManyAttempts."""
    connection.execute(REMOVE_OLD)
    with connection.transaction():
        for kind, value in (("user", name), ("ip", ip)):
            if value is not None:
                _count(connection, kind, value)


def _count(connection: Connection, kind: str, value: str) -> None:
    values = {
        "subject": f"{kind}:{value}",
        "free": FREE_ATTEMPTS[kind],
        "first": FIRST_WAIT_SECONDS,
        "longest": LONGEST_WAIT_SECONDS,
    }
    if connection.execute(COUNT.encode(), values).fetchone() is None:
        row = connection.execute(SECONDS_LEFT.encode(), values).fetchone()
        raise TooManyAttempts(row[0] if row else 1)


def record_success(connection: Connection, name: str, ip: str | None) -> None:
    """Forget the account's failures and take back this attempt of the address: the password was right."""
    connection.execute(REMOVE_ACCOUNT, (f"user:{name}",))
    if ip is not None:
        connection.execute(TAKE_BACK, (f"ip:{ip}",))
