"""Freezes what a program computes in one file without code, so that others are compared with it, without the program."""
