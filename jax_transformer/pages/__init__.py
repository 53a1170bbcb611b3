"""Web pages of one file that need nothing else: no network, no server, no other file."""
