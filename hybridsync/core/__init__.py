"""Values that everything uses: units, plans, clocks, errors, deadlines. It imports nothing from the other rooms."""
