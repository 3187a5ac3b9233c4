"""A line of a crontab that cron starts with the machine → a ready unit of systemd. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_UNIT = """\
# /etc/systemd/system/{name}.service
[Unit]
Description={name}
After=network.target

[Service]
Type=exec
User={user}
WorkingDirectory=-~
{environment}
ExecStart={command}{stdin}
RemainAfterExit=yes

[Install]
WantedBy=multi-user.target
"""


def unit(name: str, user: str, argv: Sequence[str], env: Mapping[str, str], stdin: str | None = None) -> str:
    """Return the text of the unit ``name``: it runs ``argv`` once as ``user`` when the machine starts.

    It counts as active when the command has ended, so that what the command left running stays.
    """
    data = "" if not stdin else f"\nStandardInput=data\nStandardInputText={_of_input(stdin)}"
    return _UNIT.format(
        name=name,
        user=user,
        environment="Environment=" + " ".join(_quoted(f"{name}={value}") for name, value in env.items()),
        command=" ".join(_quoted(word).replace("$", "$$") for word in argv),
        stdin=data,
    )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\t", "\\t")
    return f'"{escaped}"'


def _of_input(text: str) -> str:
    # systemd adds the last line end itself, and drops white space at the beginning.
    lines = text.removesuffix("\n").replace("\\", "\\\\").replace("%", "%%").replace("\n", "\\n")
    return f"\\x20{lines[1:]}" if lines.startswith(" ") else lines
