"""One page of text as a PDF, written by hand: header, six objects, the table of their places, trailer."""

from __future__ import annotations

from collections.abc import Sequence


def one_page(lines: Sequence[str]) -> bytes:
    """Return a PDF of one A4 page with up to 45 ``lines`` (Latin-1; other characters become '?')."""
    shown = "".join(f"({_escaped(line)}) Tj T*\n" for line in lines[:45])
    content = f"BT /F1 12 Tf 16 TL 60 780 Td\n{shown}ET".encode("latin-1", "replace")
    objects = (
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R /Resources 6 0 R >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Courier /Encoding /WinAnsiEncoding >>",
        b"<< /Font << /F1 5 0 R >> >>",
    )
    document, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(document))
        document += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    index = b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, table)
    trailer = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, len(document))
    return document + index + trailer


def _escaped(line: str) -> str:
    plain = "".join(c if c.isprintable() else " " for c in line[:80])
    return plain.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
