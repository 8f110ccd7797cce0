"""The play loop: many games at once, the model's group steps and the engine's searches side by side."""
