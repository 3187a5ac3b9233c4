"""One module per noun; each has a ``blueprint``. BLUEPRINTS lists them all."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from flask import Blueprint

# Every module of this folder is a noun; a new page needs no other registration.
BLUEPRINTS: list[Blueprint] = [
    import_module(f"{__name__}.{module.name}").blueprint for module in pkgutil.iter_modules(__path__)
]
