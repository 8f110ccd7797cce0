"""`chessreg import`: import third-party checkpoints, probes, vectors, SAEs and results."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from chessreg.cli.base import FilePath, Group, Home, NameText, Numbers, add_json_option, pass_home, print_output
from chessreg.cli.noun import add_note_option, print_rows, save_note
from chessreg.encodings import list_encodings
from chessreg.encodings.base import Notation
from chessreg.encodings.prompts import TEMPLATES, Counters, Layout, make_prompt_encoding
from chessreg.entities import load_entity
from chessreg.named import format_count

if TYPE_CHECKING:
    from chessreg.runs.spec import Spec


@click.group("import", cls=Group)
def import_() -> None:
    """Import third-party checkpoints, probes, vectors, SAEs and results."""


@import_.command()
@click.argument("source", required=False, metavar="FILE|FOLDER", type=FilePath(path_type=Path))
@click.option(
    "--reference",
    is_flag=False,
    flag_value="pgn",
    type=click.Choice(["pgn", "uci", "fen"]),
    metavar="[pgn|uci|fen]",
    help="Import a bundled model, of PGN characters (the default), UCI squares or FENs. Left out: import FILE.",
)
@click.option("--name", type=NameText(), help="Name of the checkpoint. Left out: no name; use its id.")
@add_note_option
@click.option(
    "--encoding",
    help=f"How chess is written for the model: {', '.join(list_encodings())}, or prompt: a template over the folder's "
    "own tokenizer.json.  "
    "[default: from the folder or its tokenizer, else pgn-char-32]",
)
@click.option(
    "--template",
    metavar="NAME|FILE",
    help=f"For prompt: {', '.join(TEMPLATES)}; or a text file with {{FEN}}, optionally {{LM}} after it, and {{BM}} at "
    "its end.  [default: junkin-small]",
)
@click.option(
    "--layout", type=click.Choice(get_args(Layout)), help="For prompt: how {FEN} is laid out.  [default: ruoss77]"
)
@click.option("--counters", type=click.Choice(get_args(Counters)), help="For prompt: move counters.  [default: kept]")
@click.option(
    "--notation", type=click.Choice(get_args(Notation)), help="For prompt: notation of moves.  [default: uci]"
)
@click.option("--last-separator", is_flag=True, help="For prompt: also a comma after the last legal move.")
@click.option("--bos", metavar="TOKEN", help="For prompt: first token.  [default: from the tokenizer]")
@click.option(
    "--end", metavar="TOKEN", help="For prompt: the token that ends an answer.  [default: the folder's eos token]"
)
@click.option(
    "--vocabulary",
    metavar="FILE|FOLDER",
    type=FilePath(path_type=Path),
    help="The order of the model's tokens: nanoGPT's meta.pkl or data folder, tokenizer.json, vocab.json or "
    "vocab.txt.  [default: the one in the folder, or a meta.pkl next to the file]",
)
@click.option(
    "--heads",
    type=click.IntRange(1),
    metavar="N",
    help="Attention heads of a file without settings.  [default: 8 for searchless_chess, or 4 at a width of 64; else "
    "the number that predicts sample games best]",
)
@click.option(
    "--attention",
    type=click.Choice(["causal", "bidirectional"]),
    help="Tokens that a token sees in a model of positions whose file does not record it.  [default: that of the file]",
)
@click.option(
    "--predicts",
    type=click.Choice(["action-value", "state-value"]),
    help="Values of a searchless_chess model with return buckets.  [default: state-value with 78 positions, else "
    "action-value]",
)
@click.option(
    "--rating",
    type=click.IntRange(0, 4000),
    metavar="ELO",
    help="Lichess rating at which a Maia-2 model plays.  [default: 1500]",
)
@click.option(
    "--opponent-rating",
    type=click.IntRange(0, 4000),
    metavar="ELO",
    help="Lichess rating of the opponent of a Maia-2 model.  [default: that of --rating]",
)
@click.option(
    "--trained-on",
    multiple=True,
    metavar="DATASET",
    help="Dataset that the model was trained on; repeatable.  [default: unknown]",
)
@add_json_option
@pass_home
def checkpoint(
    home: Home,
    source: Path | None,
    reference: str | None,
    name: str | None,
    note: str | None,
    encoding: str | None,
    trained_on: tuple[str, ...],
    vocabulary: Path | None,
    **others: Any,
) -> None:
    """Import a model from a file or folder, and check it on sample games.

    Formats: a nanoGPT ckpt.pt of games or positions, a Lightning .ckpt, a GPT-2 state dict, a TransformerLens .pth, a
    Hugging Face folder with a causal model, its ONNX graph (with chessreg[onnx]), a Maia-2 .pt, and DeepMind's
    searchless_chess parameters (.npz, or an orbax folder with chessreg[orbax]).

    GPT-2 and Llama run on chessreg's own code; GPT-NeoX and others run in TransformerLens, which is slower. The model
    is converted to safetensors, and its logits are compared with the original's. Tokens in another order are reordered,
    and tokens that occur in no game are dropped. A vocabulary that lacks tokens of the encoding is refused.

    The model is then checked on 20 sample games. Its loss, the loss of token frequencies alone, and the share of legal
    first-choice moves are printed and stored. A folded TransformerLens file stays folded, and its residual stream is
    recorded as centred. A file that would execute code is refused. Importing the same weights again does nothing.

    A pretrained language model reads chess as a prompt: a template, with one token per character of the position.
    Tokenizer and template are stored with the checkpoint. A Maia-2 model reads the position and two ratings, which are
    stored too; import the file again for other ratings.

    \b
    Example: chessreg import checkpoint --reference=uci
             chessreg import checkpoint ckpt.pt --name karvonen-8
             chessreg import checkpoint model.onnx --name exported
             chessreg import checkpoint rapid_model.pt --rating 1900 --name maia-1900
             chessreg import checkpoint llama/ --encoding prompt --template junkin-1 --name llama
    """
    from chessreg.cli.checkpoint import print_checkpoint
    from chessreg.entities.checkpoint import import_checkpoint, import_reference
    from chessreg.entities.fetched import read_fetch_record

    if (reference is None) == (source is None):
        raise click.UsageError("give a file or folder, or --reference")
    unrecorded_values = [others.pop(name) for name in ("heads", "attention", "predicts", "rating", "opponent_rating")]
    if reference is not None and (
        encoding or trained_on or vocabulary or any(one is not None for one in unrecorded_values)
    ):
        raise click.UsageError(
            "--encoding, --vocabulary, --heads, --attention, --predicts, --rating, --opponent-rating and --trained-on "
            "do not apply to --reference: that model has them"
        )
    settings = {name: value for name, value in others.items() if value}
    if settings and encoding != "prompt":
        raise click.UsageError(f"--{next(iter(settings)).replace('_', '-')} applies to prompts: give --encoding prompt")
    if source is None:
        session = home.open_for_adding()
        registered_checkpoint = import_reference(session.database, session.store, name, reference or "pgn")
    else:
        from chessreg.models import importers

        source = source if source.name else source.resolve()  # "." has no name that an error could give
        if encoding == "prompt":
            importers.check_folder(source)
        prompt_encoding = make_prompt_encoding(source, **settings) if encoding == "prompt" else encoding
        unrecorded_settings = importers.UnrecordedSettings(*unrecorded_values)
        session = home.open_for_adding(
            needs=trained_on,
            check=lambda: importers.check_import(source, prompt_encoding, vocabulary, unrecorded_settings),
        )
        registered_checkpoint = import_checkpoint(
            session.database, session.store, source, name=name, encoding=prompt_encoding, trained_on=trained_on or None,
            fetch_record=read_fetch_record(home.store_path / "downloads", source), vocabulary=vocabulary,
            unrecorded_settings=unrecorded_settings,
        )  # fmt: skip
    save_note(home, "checkpoint", registered_checkpoint.id, note)
    print_checkpoint(home, registered_checkpoint, note)


def add_direction_options(function: Any) -> Any:
    """Return the options that probes and vectors share."""
    options: list[Any] = [
        click.argument("paths", nargs=-1, required=True, metavar="FILE…", type=FilePath(path_type=Path)),
        click.option("--checkpoint", metavar="CHECKPOINT", help="Model in this registry.  [default: unknown]"),
        click.option(
            "--name",
            type=NameText(),
            help="Name of the import, which commands accept as a run. Left out: no name; use its id.",
        ),
        add_note_option,
        click.option(
            "--layers",
            type=Numbers(int),
            help="Layers, 0-based, one for each file. Left out: from the file or its name.",
        ),
        click.option(
            "--model", help="Name of the model that the file belongs to. Left out: from the file or its name."
        ),
        click.option(
            "--label",
            help="Label of the probe or vector (piece, skill, …). Left out: from the file or its name; for a plain "
            "tensor --name.",
        ),
        click.option(
            "--residual",
            type=click.Choice(["auto", "raw", "centred"]),
            default="auto",
            show_default=True,
            help="Convention of the residual stream; auto: centred for models called tf_lens_…",
        ),
        add_json_option,
        pass_home,
    ]
    for option in reversed(options):
        function = option(function)
    return function


@import_.command()
@add_direction_options
@click.option("--hook-point", help="Hook point that the probes read, with * for the layer. Left out: from the path.")
@click.option(
    "--phase", type=click.IntRange(0, 5), help="Phase of the tokens, for UCI squares. Left out: from the path."
)
def probe(home: Home, paths: tuple[Path, ...], name: str | None, **settings: Any) -> None:
    """Import saved probes of one model, one file per layer: Karvonen's files or Davis's safetensors.

    Davis's paths contain label, layer (0 is the embeddings, L the output of block L) and phase. Files of several
    labels, phases or hook points become one run each: NAME-piece-0-blocks, NAME-piece-0-embeddings and so on. Commands
    accept the import as a probe run. A file that would execute code is refused.

    \b
    Example: chessreg import probe tf_lens_lichess_16layers_chess_piece_probe_layer_11.pth
             chessreg import probe to_piece_by_color/layer-*/phase-0/model.safetensors --name davis
    """
    from chessreg.experiments.imported.directions import ImportedProbe

    runs = import_directions(home, ImportedProbe, paths, name, settings)
    with home.session().database.read() as session:
        rows = [row for run_id in runs for row in load_entity("probe").rows(session, run_id)]
        print_rows(home, load_entity("probe"), rows, name_empty=False)


@import_.command()
@add_direction_options
@click.option(
    "--hook-point", help="The hook point of the vectors, * for the layer; blocks.*.hook_resid_post if left out."
)
def vector(home: Home, paths: tuple[Path, ...], name: str | None, **settings: Any) -> None:
    """Import steering vectors of one model, one file per layer.

    A file is a tensor [d_model] or [1, d_model] (.npy, .pt, .safetensors), an activation vector in Karvonen's format,
    or a skill probe, whose class difference is used. Commands accept the import as a vector run. A file that would
    execute code is refused.

    \b
    Example: chessreg import vector mine.npy --checkpoint reference --layers 3 --name calm
               --note "mean of wins minus losses, make_calm.py"
             chessreg import vector lichess_train_layer_12_pos_start_25_activations.pt --name caa
    """
    from chessreg.experiments.imported.directions import ImportedVector

    [run_id] = import_directions(home, ImportedVector, paths, name, settings)
    with home.session().database.read() as session:
        print_rows(home, load_entity("vector"), load_entity("vector").rows(session, run_id), name_empty=False)
    print_relative_norms(home, run_id)
    click.echo(
        "an imported vector is not used as a control; for random directions of the same length, repeat a run of this "
        "vector with --intervention.control random",
        err=True,
    )


def print_relative_norms(home: Home, run_id: str) -> None:
    """Print the norms of a run's vectors relative to the norms of the model's residuals, as a guide to the scale.

    Prints nothing if the model is not in the store, is too large to load for this, or does not read games.
    """
    from chessreg.entities.vector import STEERING_SHARES, measure_relative_norms
    from chessreg.errors import NotFoundError

    session = home.session()
    try:
        relative_norms = measure_relative_norms(session.inputs, run_id, session.model)
    except NotFoundError:
        return
    for norms in relative_norms:
        mean = f"{norms.residual:.4g}, over all tokens of the sample games"
        share = f"{norms.compute_percent(1):g} % of the residual's mean norm ({mean})"
        low, high = norms.scales_to_try
        shares = " to ".join(f"{100 * share:g}" for share in STEERING_SHARES)
        advice = f"try --intervention.scale {low:g} to {high:g}, which adds {shares} %, and {-high:g} to {-low:g}"
        click.echo(f"layer {norms.layer}: its norm is {share}; {advice}", err=True)
    if relative_norms:
        click.echo("a vector as long as the residual makes most moves of a model illegal", err=True)


@import_.command()
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER…", type=FilePath(path_type=Path))
@click.option("--checkpoint", required=True, metavar="CHECKPOINT", help="The model whose activations the SAEs read.")
@click.option(
    "--name",
    type=NameText(),
    help="Name of the import, which commands accept as an SAE run. Left out: no name; use its id.",
)
@add_note_option
@click.option(
    "--hook-points",
    type=Numbers(str),
    help="Hook points of the SAEs, one for each folder, such as blocks.3.hook_resid_post. Left out: from the folders.",
)
@add_json_option
@pass_home
def sae(
    home: Home,
    folders: tuple[Path, ...],
    checkpoint: str,
    name: str | None,
    note: str | None,
    hook_points: tuple[str, ...] | None,
) -> None:
    """Import sparse autoencoders of one model, one folder each.

    A folder has SAELens' cfg.json and sae_weights.safetensors, or dictionary_learning's config.json and ae.pt.
    Architectures are standard, TopK, JumpReLU and gated; BatchTopK and Matryoshka SAEs are read with their threshold.
    Commands accept the import as an SAE run. A normalization of the activations that the folder does not contain,
    and any other option that changes an SAE's input or output, are refused by name. A file that would execute code is
    refused.

    \b
    Example: chessreg import sae ./blocks.3.hook_resid_post --checkpoint reference --name theirs
             chessreg import sae trainer_0/ --checkpoint mine --hook-points blocks.5.hook_resid_post
    """
    from chessreg.experiments.imported.directions import ImportedOptions
    from chessreg.experiments.imported.saes import ImportedSaeSpec, read_imported_saes

    spec = ImportedSaeSpec(checkpoint=checkpoint, folders=tuple(map(str, folders)), hook_points=hook_points or ())
    session = home.open_for_adding(needs=[checkpoint], check=lambda: read_imported_saes(spec, list(folders), None))
    row = session.inputs.read_checkpoint_row(session.inputs.reference("checkpoint", checkpoint))
    read_imported_saes(spec, list(folders), row)  # messages name the user's folders; those of the run cannot
    options = ImportedOptions(
        file_names=", ".join(path.name for path in folders), fetched=describe_origin(home, folders)
    )
    report = session.run(spec, options, name=name)
    save_note(home, "run", report.run_id, note)
    if report.attempt_id is None:
        print_known_import(f"these folders are already imported-sae {report.run_id.hex[-6:]}", name, note)
    with session.database.read() as sql:
        print_rows(home, load_entity("sae"), load_entity("sae").rows(sql, report.run_id.hex), name_empty=False)


def import_directions(
    home: Home, kind: Any, paths: tuple[Path, ...], name: str | None, settings: dict[str, Any]
) -> list[str]:
    """Import the files as runs, one for each label, phase and hook point that their paths name. Returns the runs' ids.

    `kind` is the class of imported runs, `name` the name of the run or the common prefix of several, and `settings` the
    options of the command. All files are checked before any is imported.
    """
    from chessreg.experiments.imported.directions import ImportedProbe, build_import_spec
    from chessreg.experiments.imported.saved import group_files_by_place

    note = settings.pop("note")
    settings["residual"] = None if settings["residual"] == "auto" else settings["residual"]
    groups = group_files_by_place(paths) if kind is ImportedProbe else {"": paths}
    session = home.open_for_adding(
        needs=[settings["checkpoint"]],
        check=lambda: [build_import_spec(kind, files, None, name, **settings) for files in groups.values()],
    )
    if settings["checkpoint"] and kind is ImportedProbe:
        groups = group_files_by_place(paths, session.inputs, settings["checkpoint"])
    specs = {place: build_import_spec(kind, files, session.inputs, name, **settings) for place, files in groups.items()}
    runs = []
    for place, spec in specs.items():
        files = groups[place]
        options = kind.options(file_names=", ".join(path.name for path in files), fetched=describe_origin(home, files))
        direction_name = f"{name}-{place}" if name and len(groups) > 1 else name
        report = session.run(spec, options, name=direction_name)
        runs.append(report.run_id.hex)
        save_note(home, "run", report.run_id, note)
        if report.attempt_id is None:
            print_known_import(f"these files are already {kind.name} {report.run_id.hex[-6:]}", direction_name, note)
    return runs


def describe_origin(home: Home, paths: tuple[Path, ...]) -> str:
    """Return the repositories and commits that files were fetched from, or an empty text."""
    from chessreg.entities.fetched import read_fetch_record

    records = [read_fetch_record(home.store_path / "downloads", path) for path in paths]
    return ", ".join(dict.fromkeys(f"{one['repository']}@{one['commit']}" for one in records if one))


def print_known_import(statement: str, name: str | None, note: str | None = None) -> None:
    """Print `statement`, that an import existed already, and which name and note were added to it."""
    added = [*([f"the name {name}"] if name else []), *(["the note"] if note else [])]
    change = f"only {' and '.join(added)} {'were' if len(added) > 1 else 'was'} added" if added else "nothing was added"
    click.echo(f"{statement}; {change}", err=True)


@click.command()
@click.argument("source", required=False, metavar="NAME|hf:USER/NAME")
@click.option(
    "--file",
    help="Another file of the same repository; for hf: a file, a folder or a pattern. Left out: the file of the "
    "published model; for hf: all files that chessreg reads.",
)
@click.option("--revision", default="main", show_default=True, help="Branch, tag or commit of the repository.")
@click.option(
    "--endpoint",
    help="Mirror to download from.  [default: HF_ENDPOINT, else https://huggingface.co; for ChessBench, its own "
    "storage]",
)
@click.option("--name", type=NameText(), help="Name of the import.  [default: NAME with - for /]")
@click.option("--keep", is_flag=True, help="Keep the downloaded file in the store.")
@add_json_option
@pass_home
def fetch(
    home: Home,
    source: str | None,
    file: str | None,
    revision: str,
    endpoint: str | None,
    name: str | None,
    keep: bool,
) -> None:
    """Download and import a model, games or positions. Without NAME, list the available ones.

    hf:USER/NAME[@REVISION][/FILE OR PATTERN] names a repository of models on the Hugging Face hub, and
    hf:datasets/USER/NAME a repository of datasets. Its models, SAEs, probes, vectors, games and positions are
    downloaded into the store, and the commands that import them are printed. Imports from there record the repository
    and the commit.

    The published digest is checked, and the SHA-256 is recorded. An interrupted download continues.

    \b
    Example: chessreg fetch karvonen/8layers
    Example: chessreg fetch chessbench/test/behavioral_cloning
    Example: chessreg fetch hf:USER/NAME@v2/trainer_0
    """
    from chessreg.cli import checkpoint, dataset
    from chessreg.cli.base import show_progress_line
    from chessreg.entities import adding
    from chessreg.entities.adding import AddedDataset
    from chessreg.models.hub import get_fetch_source, list_fetch_sources

    if source is None:
        rows = [
            {"name": s.name, "holds": s.holds, "repository": s.repository, "file": s.file, "about": s.about}
            for s in list_fetch_sources().values()
        ]
        print_output(home, rows, ["name", "repository", "file", "about"])
        return
    if source.startswith("hf:"):
        if name or keep:
            raise click.UsageError(
                "--name and --keep do not apply to hf: pass them to the commands that import the download"
            )
        fetch_from_hub(home, source, file, revision, endpoint)
        return
    source_file, downloaded_file = get_fetch_source(source), None

    def download_file() -> None:
        nonlocal downloaded_file
        downloads = home.store_path / "downloads"
        with show_progress_line(source_file.name, quiet=home.json) as on_progress:
            downloaded_file = adding.download_source(
                source_file, downloads, file=file, revision=revision, endpoint=endpoint, on_progress=on_progress
            )
        adding.check_downloaded_file(source_file, downloaded_file.path)

    session = home.open_for_adding(check=download_file)
    with show_progress_line(source_file.name, quiet=home.json) as on_progress:
        fetched_source = adding.fetch_source(
            session.database,
            session.store,
            source_file,
            file=file,
            revision=revision,
            endpoint=endpoint,
            name=name,
            keep=keep,
            downloaded_file=downloaded_file,
            on_progress=on_progress,
        )
    if isinstance(fetched_source, AddedDataset):
        dataset.print_dataset(home, fetched_source)
    else:
        checkpoint.print_checkpoint(home, fetched_source)


def fetch_from_hub(home: Home, source: str, file: str | None, revision: str, endpoint: str | None) -> None:
    """Download files of the repository `source`, and print what they are and the commands that import them.

    `file` selects a file or folder, `revision` a branch, tag or commit, and `endpoint` another hub than Hugging Face's.
    """
    import dataclasses

    from chessreg.cli.base import show_progress_line
    from chessreg.entities import fetched
    from chessreg.entities.adding import make_download_callback
    from chessreg.models.hub_repository import HubAddress
    from chessreg.terminal import make_visible

    address = HubAddress.parse(source)
    if file is not None:
        address = dataclasses.replace(address, pattern=file.strip("/"))
    if revision != "main":
        address = dataclasses.replace(address, revision=revision)
    with show_progress_line(str(address), quiet=home.json) as on_progress:
        fetched_repository = fetched.fetch_repository(
            address, home.store_path / "downloads", endpoint=endpoint, on_progress=make_download_callback(on_progress)
        )
    if home.json:
        contents = [content._asdict() for content in fetched_repository.contents]
        repository, commit = str(fetched_repository.repository.address), fetched_repository.repository.commit
        print_output(
            home,
            {"repository": repository, "commit": commit, "folder": str(fetched_repository.folder),
             "files": list(fetched_repository.files), "contents": contents},
        )  # fmt: skip
        return
    click.echo(
        f"{format_count(len(fetched_repository.files), 'file')} of commit "
        f"{fetched_repository.repository.commit[:12]} in {fetched_repository.folder}",
        err=True,
    )
    for content in fetched_repository.contents or [fetched.FetchedContent("nothing that chessreg imports", "")]:
        click.echo(make_visible(f"{content.what}: {content.command}" if content.command else content.what))


COUNTS = ["run", "format", "rows", "games", "aggregates", "points", "other_lines"]


@click.command()
@click.argument("file", metavar="FILE", type=FilePath(path_type=Path))
@click.option("--name", type=NameText(), help="Name of the import's run. Left out: no name; use its id.")
@add_note_option
@click.option(
    "--format",
    "format_",
    metavar="NAME",
    help="chess_gpt_eval, pgn, grid-search, sweep or training-log.  [default: by content]",
)
@click.option(
    "--players",
    multiple=True,
    metavar="NAME",
    help="Player whose results are counted; repeatable, preferred player first. Left out: a model before an engine.",
)
@click.option(
    "--checkpoint",
    metavar="CHECKPOINT",
    help="Checkpoint of this registry that played. Left out: the model is recorded by its name only.",
)
@click.option(
    "--rename",
    multiple=True,
    metavar="OLD=NEW",
    help="Rename a player, as OLD=NEW; repeatable. Left out: names as in the file.",
)
@click.option("--engine-version", help="Version of the engines. Left out: unknown.")
@click.option(
    "--limit", metavar="LIMIT", help="Limit of an engine, such as time=0.1. Left out: from the file, or unknown."
)
@click.option(
    "--opening", metavar="OPENING", help="Openings of the games: standard or random:PLIES. Left out: unknown."
)
@click.option("--policy", help="How the model's moves were chosen.  [default: as the format's program does]")
@click.option(
    "--adjudication",
    metavar="LIMIT",
    help="Limit with which Stockfish evaluates stopped games, such as nodes=100000. Left out: they have no result.",
)
@click.option(
    "--move-limit",
    type=click.IntRange(1),
    help="Full moves after which games were stopped. Left out: the value of the program that wrote the file.",
)
@click.option(
    "--color", type=click.Choice(["both", "white", "black"]), help="For a sweep: the model's color.  [default: both]"
)
@click.option(
    "--assist",
    type=click.Choice(["none", "author", "on-repetition", "unknown"]),
    help="For a sweep: when Stockfish played the model's move.  [default: unknown]",
)
@add_json_option
@pass_home
def results(home: Home, file: Path, name: str | None, note: str | None, format_: str | None, **settings: Any) -> None:
    """Import published results: games, means, sweeps or training logs.

    Formats: a chess_gpt_eval CSV, a tournament's PGN, means of a grid search, a sweep of level,wins,draws,losses, and
    the log of a training script.

    Every game is replayed and compared with its row; all mismatches are listed. Importing the same bytes again does
    nothing. Sweeps appear in `wins by level` and in ratings, logs in `training curves`.

    \b
    Example: chessreg import results games.csv --name gpt-3.5 --limit time=0.1
             chessreg import results sweep.txt --players fen-600k --color white --limit time=0.1
             chessreg import results train.log --name author
    """
    from chessreg.cli.base import show_progress_line
    from chessreg.experiments.imported.file import ImportOptions, load_import_report
    from chessreg.experiments.imported.players import name_externals

    spec = make_import_spec(file, format_, {key: value for key, value in settings.items() if value})
    session = home.open_for_adding(needs=[settings.get("checkpoint")])
    with show_progress_line("import results", quiet=home.json) as on_progress:
        run_report = session.run(spec, ImportOptions(file_name=file.name), name=name, on_progress=on_progress)
    if run_report.missing:
        click.echo(f"interrupted; to resume: chessreg import results {shlex.quote(str(file))}", err=True)
        click.get_current_context().exit(130)
    save_note(home, "run", run_report.run_id, note)
    name_externals(session.database, run_report.run_id)
    is_new = run_report.attempt_id is not None
    report = load_import_report(session.inputs, run_report.run_id)
    run_name = get_run_name(home, run_report.run_id)
    if not is_new:
        print_known_import(f"these bytes are already run {run_name or run_report.run_id.hex[-6:]}", name, note)
    if home.json:
        print_output(
            home,
            {"run_id": run_report.run_id.hex, "name": run_name, "kind": run_report.kind, "created": is_new, **report},
        )
        return
    print_import_report({"run": run_name, **report})


def make_import_spec(file: Path, format_: str | None, settings: dict[str, Any]) -> Spec:
    """Return the spec of this file's import. Raises BadInputError for an unknown file, format or unsuitable setting."""
    from chessreg.errors import BadInputError
    from chessreg.experiments.imported.aggregates import ImportedAggregatesSpec
    from chessreg.experiments.imported.curves import ImportedCurvesSpec
    from chessreg.experiments.imported.specs import ImportedGamesSpec
    from chessreg.experiments.imported.sweep import ImportedSweepSpec
    from chessreg.games.foreign import FORMATS, find_format
    from chessreg.runs.spec import build_settings

    file_format = FORMATS[format_] if format_ else find_format(file)
    models: dict[str, type[Spec]] = {
        "games": ImportedGamesSpec,
        "aggregates": ImportedAggregatesSpec,
        "counts": ImportedSweepSpec,
        "curves": ImportedCurvesSpec,
    }
    model = models[file_format.holds]
    if unknown_names := settings.keys() - model.model_fields.keys():
        flag = f"--{min(unknown_names).replace('_', '-')}"
        raise BadInputError(f"{flag} does not apply to a {file_format.name} file: it holds {file_format.holds}")
    spec: Spec = build_settings(model, {"file": str(file), "format": file_format.name, **settings})
    return spec


def get_run_name(home: Home, run_id: Any) -> str:
    """Return the run's name, or its short id."""
    from chessreg.registry.names import read_name

    with home.session().database.read() as session:
        return read_name(session, "run", run_id) or run_id.hex[-6:]


def print_import_report(report: dict[str, Any]) -> None:
    """Print the counts on stdout, then the mismatches."""
    print_output(False, {key: report[key] for key in COUNTS if key in report})
    for title in ("results", "terminations", "models", "metrics"):
        if report.get(title):
            click.echo(f"{title}: " + ", ".join(f"{count} {key}" for key, count in report[title].items()))
    if report["oddities"]:
        click.echo("\noddities")
        oddity_rows = [
            {**odd, "rows": format_row_numbers(odd["rows"]), "for example": odd["texts"][0]}
            for odd in report["oddities"]
        ]
        print_output(False, oddity_rows, ["code", "count", "rows", "for example"])
    if report["rejected"]:
        click.echo("\nrows without a game")
        print_output(False, report["rejected"], ["row", "reason"])
    if not report["oddities"] and not report["rejected"]:
        click.echo("no oddities")


def format_row_numbers(rows: list[int]) -> str:
    """Return the first six row numbers as text."""
    numbers = ", ".join(map(str, rows[:6]))
    return numbers if len(rows) <= 6 else f"{numbers}, …"


import_.add_command(results)
