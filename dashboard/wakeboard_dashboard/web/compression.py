"""Gzips answers for clients that accept it; static files come from memory.

The length of a compressed answer tells what repeats in it (BREACH). Another site can make a browser send
requests with text of its choice in the address, measure the answers, and so learn secrets that the page shows
beside that text. Pages carry no token, but payloads may hold secrets. So an answer is compressed only when no
other site can have sent the request with the operator's session: it comes from our own pages, from an address
that was typed or bookmarked (``Sec-Fetch-Site``), or without a cookie.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator

from flask import Flask, Response, current_app, request

from wakeboard_dashboard.web import files

# Smaller answers would grow by the headers.
LEAST_BYTES = 500
# Measured on an overview of 53 kB: 0.7 ms and 8.3 kB; level 9 takes 1.2 ms for one part in fifty. A night of
# 257 kB takes 0.9 ms at level 3 and is 26.5 kB, 1.8 ms at level 4 for 25.5 kB, 2.6 ms at level 6 for 23.2 kB.
LEVEL, LEVEL_OF_LONG = 6, 3
LONG_BYTES = 64_000
PACKED_TYPES = ("text/html", "text/plain", "text/csv", "application/json", "image/svg+xml")


def install(app: Flask) -> None:
    """Compress the answers of ``app``. Call it before any other ``after_request``: hooks run in reverse."""
    app.add_url_rule(f"{files.STATIC}{files.SCRIPTS}", "scripts", scripts)
    app.after_request(compress)


def scripts() -> Response:
    """Return all scripts of the page as one file."""
    assert current_app.static_folder is not None
    response = Response(files.content(current_app.static_folder, files.SCRIPTS), mimetype="text/javascript")
    response.set_etag(files.fingerprint(current_app.static_folder, files.SCRIPTS))
    response.make_conditional(request)
    return response


def compress(response: Response) -> Response:
    """Return ``response``, gzipped when that is worth it, wanted and safe."""
    if response.status_code == 304 or "Content-Encoding" in response.headers:
        return response
    if request.path.startswith(files.STATIC):
        return _static(response)
    if response.mimetype not in PACKED_TYPES:
        return response
    response.vary.add("Accept-Encoding")
    if not (_is_wanted() and is_same_origin()):
        return response
    if response.is_streamed:
        response.response = _packing(response.iter_encoded())
        # A redirect that was raised comes as a stream with the length of its plain text.
        response.headers.pop("Content-Length", None)
        response.headers["Content-Encoding"] = "gzip"
    else:
        plain = response.get_data()
        if len(plain) >= LEAST_BYTES:
            level = LEVEL if len(plain) < LONG_BYTES else LEVEL_OF_LONG
            _replace(response, gzip.compress(plain, level, mtime=0))
    return response


def _packing(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield ``chunks`` as one gzip stream, as they come."""
    packer = zlib.compressobj(LEVEL, wbits=zlib.MAX_WBITS | 16)
    for chunk in chunks:
        if small := packer.compress(chunk):
            yield small
    yield packer.flush()


def is_same_origin() -> bool:
    """Return whether no other site can have sent this request with the operator's session."""
    site = request.headers.get("Sec-Fetch-Site")
    return site in ("same-origin", "none") if site is not None else not request.cookies


def _static(response: Response) -> Response:
    response.vary.add("Accept-Encoding")
    assert current_app.static_folder is not None
    folder, name = current_app.static_folder, request.path.removeprefix(files.STATIC)
    if response.status_code != 200:
        return response
    small = files.packed(folder, name) if _is_wanted() else None
    if small is not None:
        response.direct_passthrough = False
        _replace(response, small)
    elif name in files.OURS:
        response.direct_passthrough = False
        response.set_data(files.content(folder, name))
    return response


def _is_wanted() -> bool:
    return request.accept_encodings.quality("gzip") > 0


def _replace(response: Response, body: bytes) -> None:
    response.set_data(body)
    response.headers["Content-Encoding"] = "gzip"
    tag, _ = response.get_etag()
    if tag is not None:
        # The same file in other bytes: equal enough for If-None-Match, not for ranges.
        response.set_etag(tag, weak=True)
    response.headers.pop("Accept-Ranges", None)
