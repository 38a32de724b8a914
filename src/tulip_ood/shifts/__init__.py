"""Pseudo-OOD made from ID inputs: one kind a file."""
