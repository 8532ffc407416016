"""What several tests share; importable as `support` (see pytest options in pyproject.toml)."""
