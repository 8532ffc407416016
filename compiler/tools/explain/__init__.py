"""Explanations: why a rule matched, nearly matched, or did not."""
