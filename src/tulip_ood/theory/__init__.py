"""What the paper proves, made computable: infinite networks, their training, the bound."""
