"""`chessreg import probe | vector`, and imports used in place of fitted probes and vectors."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chessreg.errors import BadInputError
from chessreg.registry import tables
from chessreg.session import open_session

torch.set_num_threads(1)
MODEL = "tf_lens_lichess_2layers_ckpt_no_optimizer"
LOGGED = {
    "iters": 50, "epochs": 4, "indexing_function_name": "find_dots_indices", "pos_start": 0, "n_layers": 2,
    "config_name": "chess_piece_probe", "dataset_prefix": "lichess_", "num_games": 11, "model_name": MODEL,
}  # fmt: skip


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def probe_file(folder: Path, layer: int, **more: Any) -> Path:
    path = Path(tempfile.mkdtemp(dir=folder)) / f"{MODEL}_chess_piece_probe_layer_{layer}.pth"
    torch.save({**LOGGED, "linear_probe": random(1, 32, 8, 8, 13, seed=layer), "layer": layer, **more}, path)
    return path


def vector_file(folder: Path, layer: int, **more: Any) -> Path:
    high, low = random(32, seed=layer), random(32, seed=layer + 50)
    sides = {"average_high_elo_activation": high, "average_low_elo_activation": low, "difference_vector": high - low}
    counts = {"count_high_elo": 3, "count_low_elo": 4, "column_name": "WhiteEloBinIndex"}
    path = folder / f"type=caa_simple_model=2layers_layer={layer}_activations.pt"
    logged = {**LOGGED, "config_name": "chess_skill_probe", "pos_start": 25}
    torch.save({**logged, **sides, **counts, "layer": layer, **more}, path)
    return path


def test_probes_of_several_layers_are_one_import(here: Any, tmp_path: Path) -> None:
    files = [probe_file(tmp_path, layer) for layer in (1, 0)]
    rows = here.json("import", "probe", *files, "--name", "theirs")
    assert [(row["name"], row["layer"], row["train_games"], row["epochs"]) for row in rows] == [
        ("theirs", 1, 10, 5),
        ("theirs", 0, 10, 5),
    ]
    assert (rows[0]["checkpoint_id"], rows[0]["model"]) == (None, f"unknown: {MODEL}")
    assert rows[0]["train_positions"] == 10 * 33
    assert rows[0]["detail"]["residual"] == "centred"
    assert rows[0]["detail"]["logged"]["num_games"] == 11
    assert here.json("probe", "list")[0]["artifact"] == rows[0]["artifact"]
    shown = here.json("probe", "show", "theirs", "--layer", "0", "--square", "e2")
    weight = torch.load(files[1])["linear_probe"]
    assert shown["norms"]["P"] == pytest.approx(float(weight[0, :, 1, 4, 7].norm()), rel=1e-5)
    before = here.state()
    assert here("import", "probe", *files) == 0
    assert "already" in here.err
    assert here.state() == before


def test_the_same_files_under_a_second_name_have_both_names(here: Any, tmp_path: Path) -> None:
    file = probe_file(tmp_path, 1)
    assert here("import", "probe", file, "--name", "first") == 0
    assert here("import", "probe", file, "--name", "second") == 0
    assert "these files are already imported-probe" in here.err
    assert "; only the name second was added" in here.err
    ids = {here.json("probe", "show", name, "--layer", "1")["run_id"] for name in ("first", "second")}
    assert len(ids) == 1


def davis_file(folder: Path, layer: int, phase: int, label: str = "to_piece_by_color") -> Path:
    from safetensors.torch import save_file

    path = folder / label / f"layer-{layer:02}" / f"phase-{phase}" / "model.safetensors"
    path.parent.mkdir(parents=True)
    classes = {"to_piece_by_color": 13, "to_color": 3}[label]
    weights = {f"submodules.{square}.weight": random(classes, 8, seed=square) for square in range(64)}
    save_file({name: weight + layer + 20 * phase for name, weight in weights.items()}, path)
    return path


def test_davis_files_of_several_hook_points_phases_and_labels_are_one_command(here: Any, tmp_path: Path) -> None:
    files = [davis_file(tmp_path, layer, phase) for phase in (0, 1) for layer in (0, 1, 2, 12)]
    files.append(davis_file(tmp_path, 1, 0, "to_color"))
    rows = here.json("import", "probe", *files, "--name", "davis")
    found = {(row["name"], row["layer"], row["hook_point"]) for row in rows}
    assert found == {
        *(
            (f"davis-piece-{phase}-{place}", layer, point)
            for phase in (0, 1)
            for place, layer, point in (
                ("embeddings", 0, "blocks.0.hook_resid_pre"),
                ("blocks", 0, "blocks.0.hook_resid_post"),
                ("blocks", 1, "blocks.1.hook_resid_post"),
                ("final", 11, "ln_final.hook_out"),
            )
        ),
        ("davis-color-0-blocks", 0, "blocks.0.hook_resid_post"),
    }
    broken = davis_file(tmp_path, 3, 2)
    broken.write_bytes(broken.read_bytes()[:-9])
    before = here.state()
    assert here("import", "probe", davis_file(tmp_path, 3, 0), broken)
    assert here.state() == before  # all are checked before any is imported
    assert here("import", "probe", *files[:2], "--layers", "3,4")
    assert "but the paths state" in here.err


def test_vectors_keep_the_sums_of_the_file_and_say_so(here: Any, tmp_path: Path) -> None:
    rows = here.json("import", "vector", vector_file(tmp_path, 0), vector_file(tmp_path, 1), "--name", "caa")
    detail = rows[0]["detail"]
    assert (rows[0]["source"], rows[0]["games"]) == ("contrastive:white_elo", 7)
    assert (detail["positions"], detail["positions_summed"]) == ("summed", 8)
    shown = here.json("vector", "show", "caa", "--layer", "1")
    assert shown["norm_high"] == pytest.approx(float(random(32, seed=1).norm()), rel=1e-5)
    assert here.json("vector", "show", "caa", "--against", "caa") == [
        {"layer": layer, "cosine": pytest.approx(1)} for layer in (0, 1)
    ]
    assert here("vector", "show", "caa") == 4  # two layers: which?


def test_a_skill_probe_gives_the_difference_of_its_classes(here: Any, tmp_path: Path) -> None:
    skill = {"config_name": "chess_skill_probe", "linear_probe": random(1, 32, 1, 1, 2)}
    path = probe_file(tmp_path, 1, **skill)
    made = here.json("import", "vector", path, "--name", "derived")[0]
    expected = skill["linear_probe"][0, :, 0, 0, 1] - skill["linear_probe"][0, :, 0, 0, 0]
    assert (made["source"], made["norm"]) == ("probe:skill", pytest.approx(float(expected.norm()), rel=1e-5))
    with open_session() as session:
        assert session.vector("derived", 1) == pytest.approx(expected.numpy())
    here.json("import", "probe", path, "--name", "skill")
    cosines = here.json("probe", "show", "skill")["cosines"]
    assert list(cosines) == ["low and high"]


def test_names_tell_what_bare_tensors_do_not(here: Any, tmp_path: Path) -> None:
    path = tmp_path / f"{MODEL}_chess_piece_probe_layer_1_pos_start_5.pth"
    torch.save(random(1, 32, 8, 8, 13), path)
    row = here.json("import", "probe", path)[0]
    assert (row["layer"], row["label"], row["train_games"], row["positions"]) == (1, "piece", None, "unknown")
    nameless = path.rename(tmp_path / "probe.pth")
    assert here("import", "probe", nameless) == 4
    assert f"{nameless} does not state its layer" in here.err
    assert here("import", "probe", nameless, "--layers", "1") == 4
    assert "residual convention" in here.err
    same = here.json("import", "probe", nameless, "--layers", "1", "--model", MODEL, "--label", "piece")
    assert same[0]["run_id"] == row["run_id"]  # the bytes and their description are the same


def test_refusals_leave_nothing_behind(here: Any, tmp_path: Path, world: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    bomb = tmp_path / "bomb.pth"
    torch.save({**LOGGED, "layer": 0, "linear_probe": random(1, 32, 1, 1, 2), "x": Bomb()}, bomb)
    assert here("import", "checkpoint", world / "twin", "--name", "small") == 0
    wide = {"linear_probe": random(1, 64, 8, 8, 13)}
    first, second, deep = probe_file(tmp_path, 0), probe_file(tmp_path, 0), probe_file(tmp_path, 5)
    before = here.state()
    for words, status, message in (
        (("probe", bomb), 4, "would execute code"),
        (("probe", tmp_path / "no.pth"), 3, "does not exist"),
        (("probe", tmp_path), 3, "is a folder, not a file"),
        (("probe", first, second), 4, f"{first} and {second} both have layer 0"),
        (("probe", first, deep, "--layers", "0,4"), 4, f"{deep} states layer 5, not 4"),
        (("probe", probe_file(tmp_path, 0), probe_file(tmp_path, 1, model_name="x")), 4, "different models"),
        (("probe", probe_file(tmp_path, 0, **wide), "--checkpoint", "small"), 4, "d_model 64"),
        (("probe", probe_file(tmp_path, 0, n_layers=8), "--checkpoint", "small"), 4, "8 layers"),
        (("probe", probe_file(tmp_path, 0, linear_probe=torch.zeros(1, 32, 8, 8, 13))), 4, "only zeros"),
        (
            ("probe", probe_file(tmp_path, 0, linear_probe=torch.zeros(1, 9, 8, 8, 13)), "--checkpoint", "small"),
            4,
            "d_model 9",
        ),
        (("probe", deep, "--checkpoint", "small"), 4, f"{deep} has layer 5"),
        (("probe", probe_file(tmp_path, 0), "--checkpoint", "nobody"), 3, "nobody"),
        (("vector", probe_file(tmp_path, 0)), 4, "64 squares"),
    ):
        assert here("import", *words) == status, here.err
        assert message in here.err
        assert here.err.count("\n") <= 2
    assert here.state() == before
    assert not (tmp_path / "ran").exists()


def test_edits_and_games_take_imported_directions(world: Path, tmp_path: Path, capsys: Any) -> None:
    """Where `edit` asks for a probe run and `play` for a vector run."""
    from chessreg.cli.root import run_command_line

    place = ["--registry", str(world / "registry.db"), "--store", str(world / "store")]

    def chessreg(*words: str | Path) -> int:
        return run_command_line([*place, *map(str, words)])

    probes = [probe_file(tmp_path, layer) for layer in (0, 1)]
    assert chessreg("import", "probe", *probes, "--checkpoint", "reference", "--name", "their-board") == 0
    assert chessreg("import", "vector", vector_file(tmp_path, 1), "--checkpoint", "reference", "--name", "caa") == 0
    share = r"layer 1: its norm is [\d.e+-]+ % of the residual's mean norm "
    share += r"\([\d.e+-]+, over all tokens of the sample games\); "
    share += r"try --intervention.scale ([\d.e+-]+) to ([\d.e+-]+), which adds 10 to 30 %, and -\2 to -\1\n"
    assert (advice := re.search(share, capsys.readouterr().err))
    assert float(advice[2]) == pytest.approx(3 * float(advice[1]), rel=0.1)
    edit = "run edit --checkpoint reference --probe their-board --dataset sample:test --games 2 --per-game 1 --layers 1"
    assert chessreg(*edit.split()) == 0, capsys.readouterr().err
    play = "run play --checkpoint reference --opponent random --games 2 --policy legal --move-limit 3"
    assert chessreg(*play.split(), "--intervention.vector", "caa", "--intervention.scale", "0.1") == 0
    with open_session(str(world / "registry.db"), world / "store") as session, session.database.read() as sql:
        run = sql.get_one(tables.Run, session.id("run", "their-board"))
        assert run.spec["checkpoint"] == session.inputs.reference("checkpoint", "reference")  # not its name here
    strange = probe_file(tmp_path, 1)
    assert chessreg("import", "probe", strange, "--name", "of-nobody") == 0
    capsys.readouterr()
    assert chessreg(*edit.replace("their-board", "of-nobody").split()) == 4
    assert "is imported, and its checkpoint is unknown" in capsys.readouterr().err


def saved_alone(folder: Path, form: str, values: torch.Tensor) -> Path:
    from safetensors.torch import save_file

    path = folder / f"mine.{form}"
    if form == "npy":
        np.save(path, values.numpy())
    elif form == "safetensors":
        save_file({"direction": values}, path)
    else:
        torch.save(values if form == "pt" else {"difference_vector": values}, path)
    return path


@pytest.mark.parametrize("form", ["npy", "pt", "safetensors", "pth"])
def test_a_tensor_alone_is_a_vector_of_the_user(here: Any, tmp_path: Path, form: str) -> None:
    path, direction = saved_alone(tmp_path, form, random(32)), random(32)
    (row,) = here.json(
        "import", "vector", path, "--layers", "1", "--residual", "raw", "--label", "calm", "--name", "mine"
    )
    assert (row["name"], row["source"], row["layer"]) == ("mine", "user:calm", 1)
    assert row["detail"]["hook_point"] == "blocks.1.hook_resid_post"
    assert row["positions"] == "given by the user"
    assert row["norm"] == pytest.approx(float(direction.norm()), rel=1e-5)
    with open_session() as session:
        assert session.vector("mine", 1) == pytest.approx(direction.numpy())
    assert here("lineage", "mine") == 0
    assert f"files: file {path.name}" in here.out


def test_a_row_of_a_matrix_is_a_vector_and_its_control_is_explained(here: Any, tmp_path: Path) -> None:
    path = tmp_path / "row.pt"
    torch.save(random(32)[None], path)
    (row,) = here.json("import", "vector", path, "--layers", "1", "--residual", "raw", "--name", "calm")
    assert row["norm"] == pytest.approx(float(random(32).norm()), rel=1e-5)
    assert here.err.endswith("repeat a run of this vector with --intervention.control random\n")


def test_the_note_of_an_import_is_shown_with_it_and_in_lineages(here: Any, tmp_path: Path) -> None:
    path, games = saved_alone(tmp_path, "npy", random(32)), tmp_path / "games.pgn"
    games.write_text('[White "a"]\n[Black "b"]\n[Result "1-0"]\n\n1. e4 e5 2. Qh5 Ke7 3. Qxe5# 1-0\n')
    arguments = ("import", "vector", path, "--layers", "1", "--residual", "raw", "--name", "mine")
    before = here.state()
    assert here(*arguments, "--note", " ") == 4
    assert "the note is empty" in here.err
    assert here.state() == before
    note = "mean of wins minus losses"
    for _ in range(2):  # the second import does nothing
        assert here(*arguments, "--note", note) == 0, here.err
    assert "only the name mine and the note were added" in here.err
    assert here("dataset", "add", games, "--name", "games") == 0, here.err
    assert here("dataset", "add", games, "--note", "from the club") == 0, here.err
    assert "only the note was added" in here.err
    for noun, name, text in (("vector", "mine", note), ("runs", "mine", note), ("dataset", "games", "from the club")):
        assert here(noun, "show", name) == 0
        assert here.out.count(text) == 1
        assert here("lineage", name, "--up") == 0
        assert here.out.count(f"note: {text}") == 1


def test_a_tensor_without_a_label_has_the_imports_name(here: Any, tmp_path: Path) -> None:
    path = saved_alone(tmp_path, "npy", random(32))
    (row,) = here.json("import", "vector", path, "--layers", "1", "--residual", "raw", "--name", "calm")
    assert row["source"] == "user:calm"
    (row,) = here.json("import", "vector", path, "--layers", "0", "--residual", "raw")
    assert row["source"] == "user:vector"


@pytest.mark.slow
def test_errors_of_a_vector_from_python_name_no_file(here: Any) -> None:
    assert here("import", "checkpoint", "--reference", "--name", "bundled") == 0, here.err
    made: Any
    for made, layer, complaint in (
        (torch.zeros(192), 1, "the vector.*zeros"),
        (torch.zeros(31), 1, "the vector has d_model 31"),
        (np.ones(31), 1, "the vector has d_model 31"),
        (np.ones((2, 192)), 1, "the vector.*not a tensor of floats"),
        (torch.ones(192), 8, "the vector has layer 8"),
    ):
        with open_session() as session, pytest.raises(BadInputError, match=complaint) as caught:
            session.import_vector(made, layer, checkpoint="bundled")
        assert ".npy" not in str(caught.value)
        assert tempfile.gettempdir() not in str(caught.value)


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        (torch.zeros(32), "zeros"),
        (torch.full((32,), float("nan")), "NaN"),
        (torch.ones(2, 32), "not a tensor of floats [d_model] but float32 [2, 32]"),
        (torch.ones(32, dtype=torch.int64), "not a tensor of floats"),
        (torch.ones(0), "empty"),
    ],
)
@pytest.mark.parametrize("form", ["npy", "pt", "safetensors"])
def test_what_is_no_direction_is_refused(
    here: Any, tmp_path: Path, form: str, made: torch.Tensor, complaint: str
) -> None:
    before = here.state()
    assert here("import", "vector", saved_alone(tmp_path, form, made), "--layers", "1", "--residual", "raw") == 4
    assert complaint in here.err
    assert here.state() == before


def test_a_tensor_alone_needs_its_layer_and_its_convention(here: Any, tmp_path: Path) -> None:
    path = saved_alone(tmp_path, "npy", random(32))
    assert here("import", "vector", path) == 4
    assert "--layers" in here.err
    assert here("import", "vector", path, "--layers", "1") == 4
    assert "--residual" in here.err
    assert here("import", "vector", path, "--layers", "1", "--residual", "raw", "--hook-point", "blocks.*.attn") == 4
    assert "known: hook_embed" in here.err


def test_several_tensors_and_pickled_arrays_are_refused(here: Any, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": random(32), "b": random(32)}, tmp_path / "two.safetensors")
    np.save(tmp_path / "objects.npy", np.array([print], dtype=object), allow_pickle=True)
    (tmp_path / "cut.npy").write_bytes(saved_alone(tmp_path, "npy", random(32)).read_bytes()[:90])
    for name, complaint in (
        ("two.safetensors", "2 tensors"),
        ("objects.npy", "not a NumPy"),
        ("cut.npy", "not a NumPy"),
    ):
        assert here("import", "vector", tmp_path / name, "--layers", "1", "--residual", "raw") == 4
        assert complaint in here.err
