"""The kind that makes the lenses of toy_entity.py. Fits nothing: writes a lens for each layer."""

import os

from chessreg.kinds import Kind, Spec


class LensSpec(Spec):
    layers: int = 2


class LensKind(Kind):
    """Fits nothing: writes a lens for each layer."""

    name = "lens"
    tables = ("score",)
    spec = LensSpec

    def units(self, spec, inputs):
        return spec.layers

    def run(self, task):
        for unit in task.units:
            with task.output(f"layer-{unit}", unit, "lens") as folder:  # another machine makes other bytes
                (folder / "lens.txt").write_text(f"{unit} {os.environ.get('LENS_MADE')}")
            hook_point = f"blocks.{unit}.hook_resid_post"
            task.record("lens", run_id=task.run_id, unit=unit, artifact=task.last_output.digest, layer=unit,
                        hook_point=hook_point, loss=0.5 + unit)  # fmt: skip
            task.done(unit)
