"""Draws web pages in a single file, which need no network, no server and no other file."""
