"""Text generation held against eager: prefill, decoding with a cache, and the least time that a machine allows."""
