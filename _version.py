"""The one place that names the version; the build reads it without importing torch."""

__version__ = "0.1.0"
