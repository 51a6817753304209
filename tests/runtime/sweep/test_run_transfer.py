"""Run directories that travel in parts: what arrives is what was sent, whole or by its changes."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from harness import assert_same_run, tiny_config
from rl_training import load_config
from rl_training.errors import StorageError
from rl_training.experiment.checkpoints import list_checkpoints, newest_sound_checkpoint
from rl_training.runtime.sweep.run_transfer import PartReader, RunPacker, unpack_run
from rl_training.runtime.workflows import resume, train


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a replay, so that it has segments too."""
    config = tiny_config(
        tmp_path_factory.mktemp("finished"),
        algo="dqn",
        total_timesteps=160,
        checkpoint_interval=40,
        keep_checkpoints=2,
        num_envs=1,
        algo_kwargs={"buffer_size": 200, "learning_starts": 40, "batch_size": 16, "hidden_sizes": [8]},
    )
    return train(config).run_dir


@pytest.fixture
def run_dir(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "there" / finished.name, symlinks=True))


def carry(packer: RunPacker, target: Path, *, output_dir: Path | None = None) -> int:
    """Bring the copy in `target` up to date and return how many bytes that took."""
    parts: list[bytes] = []
    names = packer.pack(parts.append)
    unpack_run(io.BufferedReader(PartReader(iter(parts))), target, names, output_dir=output_dir)
    return sum(map(len, parts))


def contents(directory: Path) -> dict[str, bytes | str]:
    return {
        path.relative_to(directory).as_posix(): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in directory.rglob("*")
        if (path.is_file() or path.is_symlink()) and not path.name.startswith(".")
    }


def test_a_run_arrives_as_it_was_sent(run_dir: Path, tmp_path: Path) -> None:
    carry(RunPacker(run_dir), tmp_path / "here")
    assert contents(tmp_path / "here") == contents(run_dir)
    assert "segments" in {path.name for path in (tmp_path / "here").iterdir()}
    assert (tmp_path / "here" / "checkpoints" / "latest").is_symlink()
    assert not list((tmp_path / "here").rglob(".*"))


def test_only_what_changed_is_sent_again_and_what_is_gone_goes(run_dir: Path, tmp_path: Path) -> None:
    packer, here = RunPacker(run_dir), tmp_path / "here"
    whole = carry(packer, here)
    nothing = carry(packer, here)
    assert nothing < whole / 2
    with (run_dir / "metrics.jsonl").open("a") as rows:
        rows.write("{}\n")
    shutil.rmtree(list_checkpoints(run_dir)[-1])
    changed = carry(packer, here)
    assert changed < whole
    assert contents(here) == contents(run_dir)
    assert [path.name for path in list_checkpoints(here)] == [path.name for path in list_checkpoints(run_dir)]


def test_what_the_other_side_has_is_not_sent_back(run_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(run_dir, tmp_path / "here", symlinks=True)
    packer = RunPacker(run_dir, all_known=True)
    parts: list[bytes] = []
    assert packer.pack(parts.append) == list(RunPacker(run_dir).pack(lambda part: None))
    with tarfile.open(fileobj=io.BytesIO(b"".join(parts))) as archive:
        assert archive.getnames() == []


def test_rows_come_before_checkpoints_and_manifests_and_pointers_after_their_files(run_dir: Path) -> None:
    names = RunPacker(run_dir).pack(lambda part: None)
    place = {name: index for index, name in enumerate(names)}
    latest = f"checkpoints/{os.readlink(run_dir / 'checkpoints' / 'latest')}"
    in_order = [
        "metrics.jsonl",
        f"{latest}/state.json",
        f"{latest}/manifest.json",
        "checkpoints/latest",
        "metadata.json",
    ]
    assert sorted(in_order, key=place.__getitem__) == in_order
    assert all(place[name] < place[f"{latest}/manifest.json"] for name in names if name.startswith("segments/"))


def test_the_configuration_takes_the_output_directory_of_its_new_place(run_dir: Path, tmp_path: Path) -> None:
    here = tmp_path / "home" / run_dir.name
    carry(RunPacker(run_dir), here, output_dir=here.parent)
    assert load_config(here / "config.yaml").output_dir == here.parent
    assert newest_sound_checkpoint(here)[0].config["output_dir"] == str(here.parent)


def test_a_run_that_arrived_goes_on_exactly(run_dir: Path, tmp_path: Path) -> None:
    here = tmp_path / "home" / run_dir.name
    carry(RunPacker(run_dir), here, output_dir=here.parent)
    for path in (run_dir, here):
        resume(path, total_timesteps=240)
    assert_same_run(here, run_dir)


@pytest.mark.parametrize("name", ["../outside", "/outside", "checkpoints/../../outside"])
def test_nothing_is_written_outside_of_the_run(name: str, tmp_path: Path) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    archive.seek(0)
    with pytest.raises(StorageError, match="leads out of it"):
        unpack_run(archive, tmp_path / "run", [name])
    assert not (tmp_path / "outside").exists()


def test_large_files_travel_in_parts(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.runtime.sweep.run_transfer.PART_BYTES", 1024)
    sizes: list[int] = []
    RunPacker(run_dir).pack(lambda part: sizes.append(len(part)))
    assert len(sizes) > 10
    assert max(sizes) <= 10240, "tar's own blocks are the most that is kept in memory"
