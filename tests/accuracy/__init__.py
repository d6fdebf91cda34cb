"""How far off private answers are: dpsql beside other systems, at equal privacy."""
