"""The wire server: a relay between PostgreSQL clients, the twin and the dataset."""
