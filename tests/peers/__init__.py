"""Other systems that answer SQL or data frames privately, each in an environment of its own, to compare dpsql with."""
