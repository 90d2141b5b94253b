"""Plays a saved policy: returns over whole greedy episodes, and a picture of one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from bench.runner import load_config
from common.acting import ActingNetwork, NetworkSpec, network_spec
from common.checkpoint import load_model
from common.config import Config, ConfigError
from common.envs import inspect_env
from common.evaluate import play_episodes
from common.processes import random_stream
from common.types import FloatArray

# Training's own evaluations use the streams 0 to 2: these episodes start elsewhere.
EVALUATE_STREAM, GIF_STREAM = 3, 4
MAX_FRAMES = 1000
FRAMES_PER_SECOND = 30
MIN_PIXELS = 200


@dataclass(frozen=True)
class SavedPolicy:
    """A network with its weights ``[P]``, and the run it comes from."""

    strategy: str
    config: Config
    spec: NetworkSpec
    vector: FloatArray


def load_policy(folder: Path, best: bool = False) -> SavedPolicy:
    """Return the policy that a run has saved: the final one, or the best.

    Raises:
        ConfigError: the folder or the model is missing or damaged.
    """
    strategy, config = load_config(folder)
    spec = network_spec(config, inspect_env(config.env_id))
    vector = load_model(folder / ("best.pt" if best else "model.pt"), spec)
    return SavedPolicy(strategy, config, spec, vector)


def play(policy: SavedPolicy, episodes: int, seed: int) -> dict[str, Any]:
    """Play whole greedy episodes and return their statistics."""
    seeds = random_stream(seed, "evaluation", EVALUATE_STREAM)
    returns = play_episodes(policy.config.env_id, policy.spec, policy.vector, episodes, seeds)
    return {
        "strategy": policy.strategy,
        "env_id": policy.config.env_id,
        "seed": seed,
        "episodes": episodes,
        "mean": float(np.mean(returns)),
        "std": float(np.std(returns)),
        "min": float(np.min(returns)),
        "max": float(np.max(returns)),
    }


def write_gif(policy: SavedPolicy, path: Path, seed: int) -> int:
    """Write one greedy episode as an animation and return the number of frames.

    Raises:
        ConfigError: the environment draws no pictures, or the file cannot be written.
    """
    import imageio

    env = _drawing_env(policy.config.env_id)
    try:
        # One frame at a time: a thousand of them at once would take most of a gigabyte.
        with imageio.get_writer(path, mode="I", duration=1000 / FRAMES_PER_SECOND, loop=0) as writer:
            return _draw_episode(policy, env, writer, seed)
    except OSError as error:
        raise ConfigError(f"the picture {path} cannot be written: {error.strerror or error}") from None
    except BaseException:
        path.unlink(missing_ok=True)  # half an animation is none
        raise
    finally:
        env.close()


def _drawing_env(env_id: str) -> gymnasium.Env[Any, Any]:
    """Return the environment made to draw, having tried that it does."""
    # Into an array, on no screen: without a desktop SDL would complain on standard error.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    plain = gymnasium.make(env_id, disable_env_checker=True)
    modes = plain.metadata.get("render_modes") or ()
    plain.close()
    if "rgb_array" not in modes:
        raise ConfigError(f"{env_id} cannot be drawn: it has no render mode 'rgb_array'")
    env = gymnasium.make(env_id, render_mode="rgb_array", disable_env_checker=True)
    try:
        env.reset(seed=0)
        _picture(env)
    except Exception as error:
        env.close()
        text = " ".join(str(error).split())
        raise ConfigError(f"{env_id} cannot be drawn: {type(error).__name__}: {text}") from None
    return env


def _draw_episode(policy: SavedPolicy, env: gymnasium.Env[Any, Any], writer: Any, seed: int) -> int:
    network = ActingNetwork(policy.spec, policy.vector)
    first_action = inspect_env(policy.config.env_id).first_action
    stream = random_stream(seed, "evaluation", GIF_STREAM)
    observation, _ = env.reset(seed=int(stream.generate_state(1)[0] >> 1))
    for frame in range(MAX_FRAMES):
        writer.append_data(_picture(env))
        action = int(network.q_values(np.asarray(observation)[None]).argmax()) + first_action
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            return frame + 1
    return MAX_FRAMES


def _picture(env: gymnasium.Env[Any, Any]) -> np.ndarray[Any, Any]:
    """Return what the environment draws as bytes ``[H, W, 3]``, enlarged if it is tiny.

    Raises:
        ValueError: it draws nothing.
    """
    picture = np.asarray(env.render())
    if picture.ndim != 3:
        raise ValueError("its render() returned no picture")
    if picture.dtype != np.uint8:  # some draw with numbers from 0 to 1
        picture = (picture * 255).clip(0, 255).astype(np.uint8)
    times = max(1, MIN_PIXELS // max(picture.shape[:2]))
    return picture.repeat(times, axis=0).repeat(times, axis=1)
