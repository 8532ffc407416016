"""`python -m regraft` is the `regraft` command."""

from .compiler.cli import main

main()
