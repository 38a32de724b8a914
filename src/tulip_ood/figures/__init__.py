"""Figures of the paper, drawn again from numbers made here."""
