"""`termwise inspect`: what each order, head and layer of a model is worth on real text, as records."""
