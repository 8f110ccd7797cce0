"""Checks of the model and the probes of an edit's spec, before anything is recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chessreg.encodings import Encoding, Tokens
from chessreg.errors import BadInputError
from chessreg.experiments.edit.spec import (
    BLACK_SEGMENTS,
    EMBEDDING_PROBE,
    EMBEDDINGS,
    EditSettings,
    EditSpec,
    NextTokenEditSpec,
    list_edit_settings,
)
from chessreg.experiments.settings.sites import resolve_site_name
from chessreg.models.hook_points import RESID_PRE, check_editable, format_hook_point
from chessreg.registry import tables
from chessreg.runs.inputs import Inputs


class ProbeMismatchError(BadInputError):
    """Raised for a probe that was fitted on another checkpoint, or at other tokens, than the edit uses."""


def check_edit_spec(spec: EditSettings, inputs: Inputs) -> None:
    """Raise BadInputError or NotFoundError if the probes, the model and the settings do not fit together."""
    from chessreg.steering.scale_rules import SCALE_RULES

    checkpoint, _ = inputs.checkpoint(spec.checkpoint)
    encoding, rule = inputs.encoding(spec.checkpoint), SCALE_RULES[spec.scale_rule]
    if spec.token_mask not in ("all", "last") and spec.token_mask not in encoding.site_names:
        raise BadInputError(f"{encoding.name} has no tokens called {spec.token_mask}", "--token-mask all, or last")
    if spec.wrong_layer_control and checkpoint.layers == 1:
        raise BadInputError("--wrong-layer-control needs a model with more than one layer")
    if isinstance(spec, EditSpec) and spec.black_probe is not None and BLACK_SEGMENTS not in encoding.site_names:
        raise BadInputError(f"--black-probe edits the tokens of {BLACK_SEGMENTS}, which {encoding.name} does not have")
    fitted_layer_sets: list[set[int]] = []
    for option, reference in spec.probes.items():
        probes: Sequence[tables.ProbeRecord] = inputs.rows(tables.ProbeRecord, inputs.run(reference, "probe"))
        check_edit_probe(option, probes[0], checkpoint, encoding)
        reads_centred = checkpoint.residual == "raw" and probes[0].detail["centred"]
        if isinstance(spec, EditSpec) and rule.reference is not None and reads_centred:
            raise BadInputError(
                f"{option} reads residuals without their mean, but --scale-rule {spec.scale_rule} needs their mean",
                "--scale-rule single_scale, or chessreg run edit-next-token",
            )
        if option != EMBEDDING_PROBE:
            fitted_layer_sets.append({row.layer for row in probes})
    fitted_layers = set.intersection(*fitted_layer_sets)
    if EMBEDDING_PROBE in spec.probes and len(fitted_layer_sets) == 1:
        fitted_layers.add(EMBEDDINGS)
    if isinstance(spec, NextTokenEditSpec):
        check_next_token(spec, inputs, encoding, checkpoint)
        if rule.target is not None:
            raise BadInputError(
                f"--scale-rule {spec.scale_rule} is not available for edits that read the next token",
                "--scale-rule ln-final, ln-next, residual-norm or single_scale",
            )
    check_edit_layers(spec, inputs, fitted_layers, checkpoint)
    if isinstance(spec, EditSpec) and spec.sae is not None:
        layers = {layer for setting in list_edit_settings(spec, inputs) for layer in setting.layers}
        check_saes(inputs, spec.sae, spec.expansion, layers, checkpoint)


def check_edit_probe(name: str, probe: tables.ProbeRecord, checkpoint: tables.Checkpoint, encoding: Encoding) -> None:
    """Raise BadInputError if the probe given by the option `name` does not fit the model."""
    if probe.checkpoint_id is None:
        raise ProbeMismatchError(
            f"{name} is imported, and its checkpoint is unknown",
            "chessreg import probe FILE --checkpoint CHECKPOINT",
        )
    if probe.checkpoint_id != checkpoint.id:
        raise ProbeMismatchError(f"{name} was fitted on another checkpoint than --checkpoint", "chessreg probe list")
    if probe.classes != 13 or (name != "--shuffled-probe" and probe.label != "piece"):
        raise BadInputError(f"{name} reads {probe.label}, but an edit needs probes of label piece")
    if name != EMBEDDING_PROBE:
        check_editable(name, probe.hook_point)
    elif probe.hook_point != format_hook_point(0, RESID_PRE):
        raise BadInputError(
            f"{name} reads {probe.hook_point}, not the embeddings",
            f"fit it with --hook-point '{RESID_PRE}' --layers 0",
        )
    if checkpoint.residual == "centred" and not probe.detail["centred"]:
        raise BadInputError(
            f"{name} reads residuals with their mean, but the residuals of this checkpoint are centred",
            "fit probes on this checkpoint",
        )
    if name == "--black-probe" and is_white_to_move(probe.positions, encoding):
        raise ProbeMismatchError(
            f"{name} was fitted at {probe.positions}, where White is to move",
            "fit it on a cache of Black's turns: --sites black-turns",
        )


def check_edit_layers(
    spec: EditSettings, inputs: Inputs, fitted_layers: set[int], checkpoint: tables.Checkpoint
) -> None:
    """Raise BadInputError for an edited layer that the model or the probes do not have. `fitted_layers` are the probes'
    layers."""
    shift = spec.find_probed_layer(0)
    for setting in list_edit_settings(spec, inputs):
        if missing_layers := [layer for layer in setting.layers if layer + shift not in fitted_layers]:
            shift_text = f" for layer {missing_layers[0]}: --probe-shift is {shift}" if shift else ""
            raise BadInputError(
                f"no probe reads layer {missing_layers[0] + shift}{shift_text}",
                f"the probes share layers {', '.join(map(str, sorted(fitted_layers)))}"
                if fitted_layers
                else "the probes have no layer in common",
            )
        if missing_layers := [layer for layer in setting.layers if not 0 <= layer < checkpoint.layers]:
            message, hint = f"the model has no layer {missing_layers[0]}", f"it has layers 0 to {checkpoint.layers - 1}"
            if shift and not spec.layers and not spec.layer_sets:
                message += f": the probe of layer {missing_layers[0] + shift} is best, and --probe-shift is {shift}"
                hint += "; choose layers with --layers"
            raise BadInputError(message, hint)


def check_saes(
    inputs: Inputs, reference: str, expansion: int | None, layers: Iterable[int], checkpoint: tables.Checkpoint
) -> None:
    """Raise BadInputError unless the SAE run `reference` has an SAE of this `expansion` for the residual of each of
    `layers` of the checkpoint.

    Raises NotFoundError for an expansion that the run does not have.
    """
    from chessreg.experiments.sae.stored import select_sae_rows

    rows = select_sae_rows(inputs, reference, expansion)
    if any(row.checkpoint_id != checkpoint.id for row in rows):
        raise BadInputError("--sae was trained on another checkpoint than --checkpoint", "chessreg sae list")
    hook_points = {row.hook_point for row in rows}
    if missing_layers := [layer for layer in sorted(layers) if format_hook_point(layer) not in hook_points]:
        raise BadInputError(
            f"--sae has no SAE of the edited hook point {format_hook_point(missing_layers[0])}",
            f"its SAEs are of {', '.join(sorted(hook_points))}",
        )


def check_next_token(
    spec: NextTokenEditSpec, inputs: Inputs, encoding: Encoding, checkpoint: tables.Checkpoint
) -> None:
    """Raise BadInputError for a model or settings that do not support edits that read the next token."""
    from chessreg.experiments.edit.cases import apply_board_changes, build_single_prefix

    if all(encoding.find_origin(number) is None for number in range(encoding.answer_size)):
        raise BadInputError(
            f"the tokens of {encoding.name} do not name squares or moves",
            "edit it with chessreg run edit, or give a model of UCI squares",
        )
    if spec.future_unit == "tokens" and encoding.content == "position":
        raise BadInputError(f"{encoding.name} writes positions, which have no later tokens", "--future-unit plies")
    if spec.token_mask not in ("all", "last") and encoding.content == "position":
        raise BadInputError(
            f"--token-mask {spec.token_mask} needs a model of games, and {encoding.name} writes positions",
            "--token-mask last, or all",
        )
    if spec.moves:
        prefix = build_single_prefix(spec, encoding)
        if len(prefix.state.prompt) > checkpoint.block_size:
            raise BadInputError(
                f"--moves are {len(prefix.state.prompt)} tokens, but the model has {checkpoint.block_size} positions",
                "give fewer moves",
            )
        if spec.board:
            apply_board_changes(prefix, spec.board)
        plies = [prefix.state.ply]
    else:
        plies = list(spec.prefixes) or [2]
    if spec.probe_tokens == "match" and spec.token_mask == "last":
        for ply in sorted(plies):
            check_probe_tokens(spec, inputs, encoding, ply)


def check_context(spec: NextTokenEditSpec, inputs: Inputs) -> None:
    """Raise BadInputError if all prefixes are longer than the model's context."""
    checkpoint, encoding = inputs.read_checkpoint_row(spec.checkpoint), inputs.encoding(spec.checkpoint)
    shortest_prefix = min(spec.prefixes)
    tokens = len(encoding.prompt(make_knight_moves(shortest_prefix)))
    if tokens > checkpoint.block_size:
        raise BadInputError(
            f"a game has about {tokens} tokens after {shortest_prefix} plies, but the model's context is "
            f"{checkpoint.block_size} tokens",
            "give shorter --prefixes",
        )


def check_probe_tokens(spec: NextTokenEditSpec, inputs: Inputs, encoding: Encoding, ply: int) -> None:
    """Raise ProbeMismatchError for a probe that was not fitted at the token after `ply` plies."""
    side = ("White", "Black")[ply % 2]
    black = side == "Black" and spec.black_probe is not None
    references = {"--black-probe": (spec.black_probe,), "--other-black-probes": spec.other_black_probes}
    if not black:
        references = {"--probe": (spec.probe,), "--other-probes": spec.other_probes}
    prompt = encoding.prompt(make_knight_moves(min(ply, 4 + ply % 2)))  # these plies cover every phase of a turn
    tokens = Tokens.from_items([prompt])
    fitted_tokens = [
        (option, reference)
        for option, reference_list in references.items()
        for reference in reference_list
        if reference is not None
    ]
    for option, reference in fitted_tokens:
        probe = inputs.rows(tables.ProbeRecord, inputs.run(reference, "probe"))[0]
        site = resolve_site_name(probe.positions, encoding)
        is_known_site = site in encoding.site_names
        if is_known_site and len(prompt) - 1 in encoding.sites(site, tokens).token:
            continue
        location = f"at {site}" if is_known_site else "at unnamed tokens"
        hint = "give --probe-tokens any, or a probe fitted at these tokens"
        if side == "Black" and not black:
            hint += ", as --black-probe"
        raise ProbeMismatchError(f"{option} was fitted {location}, and {side} is to move after {ply} plies", hint)


def make_knight_moves(plies: int) -> tuple[str, ...]:
    """Return the moves of some game with this many plies."""
    return (("Nf3", "Nf6", "Ng1", "Ng8") * (plies // 4 + 1))[:plies]


def is_white_to_move(site: str, encoding: Encoding) -> bool:
    """Return whether White is to move at every site of this name."""
    sites = encoding.sites(
        resolve_site_name(site, encoding), Tokens.from_items([encoding.prompt(["e4", "e5", "Nf3", "Nc6"])])
    )
    return len(sites) > 0 and bool((sites.ply % 2 == 0).all())
