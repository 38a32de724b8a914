"""The command `tulip`: parse, call, show."""
