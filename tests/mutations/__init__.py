"""Planted defects: each breaks one rule, and a named check must fail. Kept as data, run by hand."""
