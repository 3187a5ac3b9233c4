"""Checks passwords and hashes them. Knows no database."""

from __future__ import annotations

import re
import unicodedata

from werkzeug.security import check_password_hash, generate_password_hash

METHOD = "scrypt:32768:8:3"
SHORTEST = 12
LONGEST = 128
# No password has this hash. Checking against it takes as long as checking a real one.
DUMMY_HASH = f"{METHOD}$0000000000000000${'0' * 128}"
# The commonest long passwords without the digits and signs at both ends.
_COMMON = """
    password passwords passw0rd passwort motdepasse contrasena letmein letmeinnow iloveyou iloveyouforever
    welcome welcomehome administrator admin adminadmin administration superuser rootroot changeme
    changemenow changeit secret topsecret secretsecret default master monkey dragon football baseball
    basketball sunshine princess starwars superman batman trustno charlie michael jennifer computer
    internet whatever qwerty qwertyuiop qwertyuiopasdf qwertyqwerty qwertzuiop azertyuiop asdfghjkl
    asdfghjklasdf zxcvbnm zxcvbnmzxcvbnm qazwsx qazwsxedc qazwsxedcrfv qweasdzxc qweasdzxcqwe abcdefghijkl
    abcdefghijklm abcdefgh abcabcabc abc testtest testtesttest testing passwordpassword mypassword
    thisisapassword thisismypassword correcthorsebatterystaple wakeboard wakeboardwakeboard
"""
COMMON = frozenset(_COMMON.split())


def find_weakness(password: str, name: str) -> str | None:
    """Return a sentence that says why the account ``name`` may not have ``password``, None when it may."""
    if not SHORTEST <= len(password) <= LONGEST:
        return (
            f"A password has {SHORTEST} to {LONGEST} characters; this one has {len(password)}. "
            "Several words in a row are fine."
        )
    if "\0" in password:
        return "A password cannot contain a NUL character."
    core = re.sub(r"^[\W\d_]+|[\W\d_]+$", "", password).casefold()
    plain = core.replace("0", "o").replace("@", "a").replace("$", "s").replace("3", "e").replace("1", "i")
    if not core or {core, plain} & COMMON or len(set(password)) < 4:
        return "This password is among the first that are guessed; choose another, such as several words."
    if len(name) > 2 and name.casefold() in core and len(core.replace(name.casefold(), "")) < 6:
        return "This password is the account's name with additions; choose another."
    return None


def hash_password(password: str) -> str:
    """Return the salted scrypt hash of ``password`` (about a third of a second)."""
    return generate_password_hash(_normalize(password), METHOD)


def is_password_of(password_hash: str | None, password: str) -> bool:
    """Return whether ``password`` has ``password_hash``; None (no such account) takes as long."""
    is_match = check_password_hash(password_hash or DUMMY_HASH, _normalize(password[: LONGEST + 1]))
    return is_match and password_hash is not None


def _normalize(password: str) -> str:
    """Return one spelling for the same characters from different keyboards."""
    return unicodedata.normalize("NFKC", password)
