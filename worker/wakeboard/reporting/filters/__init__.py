"""One filter language: the box, the controls, the address, its twins and the command line read it here.

``values`` reads names and texts, ``line`` a typed line, ``runs`` says which filters runs have, ``search``
finds what they ask for. Knows no page and no terminal; opens no connection.
"""
