"""Chess data: games and positions, labels, splits, openings, engines and rating estimators."""
