"""The wire server: a relay between PostgreSQL clients and the twin."""
