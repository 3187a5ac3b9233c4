"""Products: stock from a provider with outages, many photos, a slow import, a newsletter that breaks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from urllib.parse import quote

from wakeboard.demo.clients import call_provider
from wakeboard.demo.shop import PRODUCTS, folder, write_atomically
from wakeboard.handlers.context import Context
from wakeboard.handlers.registry import job
from wakeboard.queue.handler_connection import own_connection

_STOCK = "UPDATE shop.products SET quantity = %s, synced_at = now() WHERE sku = %s"
_TITLE = "UPDATE shop.products SET title = %s WHERE sku = %s"
_CATALOGUE_ROWS = 240
_ROW_SECONDS = 0.25
_PHOTO_PIXELS, _THUMBNAIL_PIXELS = 48, 12


@job("sync_stock", max_attempts=8, timeout=30, backoff="5s,15s,45s,2m")
def sync_stock(context: Context) -> dict[str, int]:
    """Fetch one product's stock. Runs pile up while the provider is down, and drain when it is back."""
    sku = str(context.payload["sku"])
    quantity = int(call_provider(f"/stock/{quote(sku, safe='')}")["quantity"])
    with own_connection() as connection:
        connection.execute(_STOCK, (quantity, sku))
    return {"quantity": quantity}


@job("import_catalogue", max_attempts=3, timeout="5m", max_running=1, schedule="*/15 * * * *")
def import_catalogue(context: Context) -> dict[str, int]:
    """Go through a long list with progress, and stop between two rows after a cancel."""
    skus = sorted(PRODUCTS)
    for row in range(_CATALOGUE_ROWS):
        context.check()
        sku = skus[row % len(skus)]
        with own_connection() as connection:
            connection.execute(_TITLE, (PRODUCTS[sku][0], sku))
        context.progress(row + 1, _CATALOGUE_ROWS)
        time.sleep(_ROW_SECONDS)
    return {"rows": _CATALOGUE_ROWS}


@job("resize_photo", max_attempts=5, timeout=20, backoff="5s,30s")
def resize_photo(context: Context) -> dict[str, str]:
    """Shrink a picture and write it atomically. Runs of this type are short and many."""
    number = int(context.payload["photo"])
    file = folder("photos") / f"photo-{number}.pgm"
    write_atomically(file, _thumbnail(number))
    return {"file": file.name}


def _thumbnail(number: int) -> bytes:
    """Return a grey picture (PGM); each pixel is the mean of a square of the original picture."""
    step = _PHOTO_PIXELS // _THUMBNAIL_PIXELS
    pixel = [[(x * y + number) % 256 for x in range(_PHOTO_PIXELS)] for y in range(_PHOTO_PIXELS)]
    small = bytes(
        sum(pixel[y + dy][x + dx] for dy in range(step) for dx in range(step)) // step**2
        for y in range(0, _PHOTO_PIXELS, step)
        for x in range(0, _PHOTO_PIXELS, step)
    )
    return b"P5 %d %d 255\n%s" % (_THUMBNAIL_PIXELS, _THUMBNAIL_PIXELS, small)


@job("render_newsletter", max_attempts=2, timeout=20, backoff="fixed 15s")
def render_newsletter(context: Context) -> dict[str, int]:
    """Fill a template. Customers without a name make it fail with a traceback, as real bugs do."""
    context.log.info("Rendering for %s", context.payload)
    return {"characters": len(fill("Hello {name}, new boards are in.", context.payload["customer"]))}


def fill(template: str, fields: Mapping[str, object]) -> str:
    """Return a template with its fields. Raises KeyError."""
    return template.format_map(fields)
