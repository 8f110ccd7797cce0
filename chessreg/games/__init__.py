"""Chess data: reading games, tokenizers, labels per position, splits, openings, engines and rating estimators."""
