"""Train policies and draw what they have learned: the pictures and figures of docs/gallery.md.

    python benchmarks/gallery.py                    # trains what is missing below build/gallery, then draws everything
    python benchmarks/gallery.py --only cartpole    # one task

The episode that is shown is the one of seed 0, whatever came of it; beside it random actions play. Each picture is
drawn with as many frames as fit into its limit. Needs the extras `atari`, `box2d`, `minatar` and `offline` (for
Pillow).
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from PIL import Image

from learning_suites import PROOF
from records import RESULTS, ROOT, machine, versions
from render_results import with_section
from rl_training.envs.make import make_slots
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.config_files import load_config
from rl_training.experiment.runs import read_metadata
from rl_training.experiment.storage.files import write_json_atomically
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.acting.video import DEFAULT_FRAMES_PER_SECOND
from rl_training.runtime.workflows import evaluate, train

PAGE = ROOT / "docs" / "gallery.md"
PICTURES = ROOT / "docs" / "gallery"
STORED = RESULTS / "gallery.json"
RANDOM_SCORES = RESULTS / "random-scores.json"
RUNS = ROOT / "build" / "gallery"
OVERVIEW = "overview"
PACKAGES = ("axiomrl", "torch", "gymnasium", "numpy", "Box2D", "MinAtar", "ale-py")
SHOWN_SEED, TRAINING_SEED, EPISODES = 0, 1, 100
PANEL = (240, 160)
SMALL_PANEL = (150, 100)
LIMIT = 290_000
"""Bytes of a picture."""
COLOURS = 64
LONGEST = 500
"""Steps of an episode that are shown at most."""
MILLISECONDS = 40
"""The shortest time of a frame that all browsers keep."""

Frames = list[Image.Image]


@dataclass(frozen=True)
class Scene:
    """One task of the gallery: a packaged preset, or an algorithm with an environment and settings."""

    title: str
    goal: str
    preset: str | None = None
    algo: str | None = None
    env_id: str | None = None
    changes: tuple[str, ...] = ()

    def config(self, output_dir: Path) -> TrainConfig:
        """Return what is trained."""
        fixed = {"seed": TRAINING_SEED, "output_dir": str(output_dir)}
        base = None if self.preset else {"algo": self.algo, "env_id": self.env_id}
        return load_config(preset=self.preset, base=base, overrides=fixed, set_values=self.changes)

    @property
    def command(self) -> str:
        """The command that trains it."""
        what = f"--preset {self.preset}" if self.preset else f"--algo {self.algo} --env {self.env_id}"
        return " ".join(["axiomrl train", what, f"--seed {TRAINING_SEED}", *(f"--set {one}" for one in self.changes)])


_PONG = next(cell for cell in PROOF if cell.preset == "ppo-pong")
SCENES = {
    "cartpole": Scene("CartPole", "keep the pole upright", preset="ppo-cartpole"),
    "pendulum": Scene("Pendulum", "swing up and stay up with little torque", preset="ppo-pendulum"),
    "acrobot": Scene(
        "Acrobot",
        "swing the lower link above the line",
        algo="ppo",
        env_id="Acrobot-v1",
        changes=(
            *("total_timesteps=300_000", "num_envs=16", "algo_kwargs.num_steps=256", "algo_kwargs.minibatch_size=256"),
            *("algo_kwargs.update_epochs=4", "algo_kwargs.gae_lambda=0.94"),
            *("env_kwargs.normalize_observation=true", "env_kwargs.normalize_reward=true"),
        ),
    ),
    "mountaincar": Scene("MountainCar", "gather speed to climb the hill", preset="ppo-mountaincar"),
    "lunarlander": Scene("LunarLander", "land between the flags", preset="ppo-lunarlander"),
    "breakout": Scene(
        "MinAtar Breakout",
        "return the ball and break the bricks",
        algo="ppo",
        env_id="MinAtar/Breakout-v1",
        changes=(
            *("total_timesteps=1_000_000", "num_envs=16", "env_kwargs.max_episode_steps=2_500"),
            *("algo_kwargs.num_steps=128", "algo_kwargs.minibatch_size=256", "algo_kwargs.update_epochs=4"),
            *("algo_kwargs.learning_rate=1e-3", "algo_kwargs.learning_rate_schedule=linear"),
            *("algo_kwargs.ent_coef=0.01",),
        ),
    ),
    "pong": Scene(
        "Pong", "win 21 rallies against the game's own player, from pixels", preset=_PONG.preset, changes=_PONG.changes
    ),
}


def trained(name: str, runs: Path) -> Path:
    """Return the run of a scene, trained now if there is none that has ended."""
    for folder in sorted((runs / name).glob("*__seed*")):
        if read_metadata(folder)["status"] == "completed":
            return folder
    return train(SCENES[name].config(runs / name)).run_dir


def make_env(config: TrainConfig) -> gymnasium.Env[Any, Any]:
    """Return the environment in which a scene is played, with the preprocessing that the policy needs."""
    (slot,) = make_slots(config.task_name, config.env_kwargs, mode="evaluation", count=1, render_mode="rgb_array")
    return slot.env


def play(
    env: gymnasium.Env[Any, Any], act: Callable[[Any], Any], seeds: Iterable[int]
) -> Iterator[tuple[np.ndarray, float]]:
    """Yield the picture and the return so far of every step, of one episode after the other."""
    for seed in seeds:
        observation, _ = env.reset(seed=seed)
        total, ended = 0.0, False
        yield _picture(env), total
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            total, ended = total + float(reward), terminated or truncated
            yield _picture(env), total


def _picture(env: gymnasium.Env[Any, Any]) -> np.ndarray:
    picture = env.render()
    assert isinstance(picture, np.ndarray)
    return picture


@dataclass(frozen=True)
class Film:
    """The pictures of one scene."""

    by_chance: Frames
    learned: Frames
    frames_per_second: int


def film(name: str, run_dir: Path) -> tuple[Film, dict[str, Any]]:
    """Return the pictures of random actions and of the policy, and the figures to store."""
    scene, policy = SCENES[name], load_policy(run_dir)
    config = scene.config(run_dir.parent)
    env = make_env(config)
    env.action_space.seed(SHOWN_SEED)
    episode = list(play(env, policy.predict, [SHOWN_SEED]))
    shown = episode[: LONGEST + 1]
    chance = list(itertools.islice(play(env, lambda _: env.action_space.sample(), itertools.count()), len(shown)))
    fps = int(env.metadata.get("render_fps") or DEFAULT_FRAMES_PER_SECOND)
    env.close()
    scores = evaluate(run_dir, num_episodes=EPISODES).metrics
    figures = {
        "name": name,
        "env_id": config.task_name,
        "algo": config.algo,
        "command": scene.command,
        "steps": read_metadata(run_dir)["latest_metrics"]["global_step"],
        "shown_return": round(episode[-1][1], 2),
        **{key: scores[key] for key in ("eval_return_mean", "eval_return_std", "eval_episodes")},
    }
    by_chance, learned = ([panel(picture) for picture, _ in one] for one in (chance, shown))
    return Film(by_chance, learned, fps), figures


def panel(picture: np.ndarray, size: tuple[int, int] = PANEL) -> Image.Image:
    """Return a picture in the middle of a panel, as large as fits."""
    image = Image.fromarray(picture).convert("RGB")
    scale = min(size[0] / image.width, size[1] / image.height)
    method = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
    image = image.resize((round(image.width * scale), round(image.height * scale)), method)
    colours, counts = np.unique(np.asarray(image).reshape(-1, 3), axis=0, return_counts=True)
    red, green, blue = (int(part) for part in colours[counts.argmax()])
    framed = Image.new("RGB", size, (red, green, blue))
    framed.paste(image, ((size[0] - image.width) // 2, (size[1] - image.height) // 2))
    return framed


def beside(rows: Sequence[Sequence[Image.Image]], gap: int = 4) -> Image.Image:
    """Return panels in rows, as one image."""
    width, height = rows[0][0].size
    columns = len(rows[0])
    size = (columns * (width + gap) - gap, len(rows) * (height + gap) - gap)
    joined = Image.new("RGB", size, (128, 128, 128))
    for row, panels in enumerate(rows):
        for column, image in enumerate(panels):
            joined.paste(image, (column * (width + gap), row * (height + gap)))
    return joined


def gif(frames: Frames, frames_per_second: int) -> bytes:
    """Return an endless animation in real time, with the fewest frames left out that its limit allows."""
    shortest = -(-MILLISECONDS * frames_per_second // 1000)
    pictures = (_encoded(frames, every, 1000 * every // frames_per_second) for every in itertools.count(shortest))
    return next(picture for picture in pictures if len(picture) <= LIMIT)


def _encoded(frames: Frames, every: int, milliseconds: int) -> bytes:
    kept = [*frames[::every], frames[-1]]
    sample = beside([kept[:: max(1, len(kept) // 8)]], gap=0)
    palette = sample.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    indexed = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in kept]
    times = [milliseconds] * (len(kept) - 1) + [1500]
    content = io.BytesIO()
    indexed[0].save(
        content, "GIF", save_all=True, append_images=indexed[1:], duration=times, loop=0, optimize=True, disposal=1
    )
    return content.getvalue()


def overview(films: Mapping[str, Frames]) -> Frames:
    """Return all trained policies at once; an episode that has ended starts again."""
    longest = max(map(len, films.values()))
    small = {
        name: [frame.resize(SMALL_PANEL, Image.Resampling.BOX) for frame in frames] for name, frames in films.items()
    }
    names, half = list(films), (len(films) + 1) // 2
    return [
        beside([[small[name][step % len(small[name])] for name in row] for row in (names[:half], names[half:])])
        for step in range(min(longest, LONGEST // 2))
    ]


def render_page(stored: Mapping[str, Any], random_scores: Mapping[str, Any]) -> str:
    """Return the section of the page: one picture per task with its figures."""
    blocks = []
    for figures in stored["scenes"]:
        scene = SCENES[figures["name"]]
        mean, std, episodes = (figures[key] for key in ("eval_return_mean", "eval_return_std", "eval_episodes"))
        by_chance = random_scores.get(figures["env_id"])
        chance = "" if by_chance is None else f" Random actions score {by_chance['mean']:.1f}."
        blocks += [
            f"### {scene.title}",
            f"The task: {scene.goal}.",
            f"![{scene.title}: random actions on the left, the trained policy on the right]"
            f"(gallery/{figures['name']}.gif)",
            f"After {figures['steps']:,} steps of `{figures['algo']}`, the mean return over {episodes} episodes is "
            f"{mean:.1f} (std {std:.1f}); the episode in the picture has {figures['shown_return']:.1f}.{chance}",
            f"```text\n{figures['command']}\n```",
        ]
    made_with = ", ".join(f"{name} {number}" for name, number in stored["versions"].items())
    return "\n\n".join([*blocks, f"Made with {made_with}."])


def main() -> None:
    """Train, draw, store the figures and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SCENES, help="one task; the overview keeps its old picture")
    parser.add_argument("--runs", type=Path, default=RUNS, help="where policies are trained and kept")
    arguments = parser.parse_args()
    logging.getLogger("rl_training").setLevel(logging.ERROR)
    names = [arguments.only] if arguments.only else list(SCENES)
    PICTURES.mkdir(exist_ok=True)
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {"scenes": []}
    figures = {entry["name"]: entry for entry in stored["scenes"]}
    films: dict[str, Frames] = {}
    for name in names:
        pictures, figures[name] = film(name, trained(name, arguments.runs))
        films[name] = pictures.learned
        pairs = [beside([[left, right]]) for left, right in zip(pictures.by_chance, films[name], strict=True)]
        (PICTURES / f"{name}.gif").write_bytes(gif(pairs, pictures.frames_per_second))
        print(f"{name}: {figures[name]['eval_return_mean']:.1f}", flush=True)
    if not arguments.only:
        (PICTURES / f"{OVERVIEW}.gif").write_bytes(gif(overview(films), DEFAULT_FRAMES_PER_SECOND))
    content = {
        "benchmark": "gallery",
        "command": "python benchmarks/gallery.py",
        "scenes": [figures[name] for name in SCENES if name in figures],
        "versions": versions(PACKAGES),
        "machine": machine(),
    }
    write_json_atomically(STORED, content)
    scores = json.loads(RANDOM_SCORES.read_text(encoding="utf-8"))["scores"]
    PAGE.write_text(with_section(PAGE.read_text(encoding="utf-8"), render_page(content, scores)), encoding="utf-8")


if __name__ == "__main__":
    main()
