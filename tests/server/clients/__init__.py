"""Real clients, with nothing special set: connect, look around, ask, fail and cancel, each in its own way.

Noise is so small under the policy of these tests that answers are exact. All of it holds for a plain PostgreSQL with
the same data as well, except where a test speaks of dpsql.
"""
