"""`termwise plan`: what each kv head of a model keeps, chosen under a target, evaluated for real, as records and a plan file."""
