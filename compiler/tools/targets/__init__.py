"""Targets of the command line: models by file, module or name."""
