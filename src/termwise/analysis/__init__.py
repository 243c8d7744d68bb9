"""Looking into a running model: what its scores are and what each order makes of them."""
