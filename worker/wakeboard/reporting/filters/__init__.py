"""The filter language of search fields, controls, addresses, JSON twins and the command line.

``values`` reads names and texts, ``line`` a typed line. ``runs`` and ``audit`` say which filters runs and the
audit log have; ``search`` and ``audit`` find what they match.
"""
