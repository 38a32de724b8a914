"""Networks by name, and the small ones that the demo and the tests use."""
