"""`python -m regraft` is the `regraft` command."""

from .compiler.tools.cli.main import main

main()
