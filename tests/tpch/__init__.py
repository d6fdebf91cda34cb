"""The 22 queries of TPC-H with customers as the unit: what each costs, how far off it is, how long it takes."""
