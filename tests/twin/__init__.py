"""The twin, as users reach it and as dpsql does."""
