"""What may be done to a user's module, and undone: copies, perturbations, passes."""
