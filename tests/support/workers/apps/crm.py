"""A handler whose partner is down until a file exists."""

from __future__ import annotations

from pathlib import Path

from wakeboard import Context, Permanent, job


@job("bill_customer")
def bill_customer(ctx: Context) -> None:
    """Ask the partner, who answers once the file that the payload names is there."""
    if not Path(ctx.payload["repaired"]).exists():
        raise Permanent("crm_down", f"The CRM answered 503 to invoice {ctx.run_id}")
