"""Freezes what a program computes in one file without code, to compare others with it without the program."""
