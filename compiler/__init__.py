"""The compiler: capture, normal form, stages, code generation and run time; it knows all rooms."""
