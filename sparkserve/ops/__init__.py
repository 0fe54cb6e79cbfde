"""The use cases: what each command does, without printing and without knowing its options."""
