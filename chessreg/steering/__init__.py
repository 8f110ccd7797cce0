"""Steering a model: directions in its residual stream, controls in their place, scale rules, and interventions.

`directions.py` reads directions off fitted probes. `controls.py` draws the directions of controls. `scale_rules.py`
computes the length of an edit. `conditions.py` lists the edits of a run with their controls. `interventions.py` loads
the vectors of a vector run.
"""
