"""The work behind `vector`: sums of activations, contrasts between classes of games, controls, comparisons."""
