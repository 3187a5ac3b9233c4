"""Who looks at a house, and acts in it: with a token, through its dashboard."""

from __future__ import annotations

from tests.support.faults.deployment import House
from tests.support.http_client import Visitor
from wakeboard.accounts.tokens import create_token
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor

ADMIN = Actor("anna", Role.ADMIN, "test")


def an_operator(house: House) -> Visitor:
    """Start the dashboard and return an operator at its door."""
    return Visitor(house.web(), create_token(house.connection, ADMIN, "operator", Role.OPERATOR))
