"""Environments as lanes: terminated, truncated and autoreset are decided here and only here.

Every worker steps its environments as a batch of lanes in gymnasium's NEXT_STEP order, whatever the
environment's own autoreset mode is. The step that ends an episode returns the episode's final
observation; the lane's next step ignores its action, returns the first observation of the next
episode and is not ``valid`` (no env step, no transition). So each lane gives exactly one row per
vector step, lanes never drift apart, and what follows a row is always the lane's next row.
"""

from __future__ import annotations

import functools
import importlib
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from common.config import Config, ConfigError, parse_straggler
from common.env_state import EpisodeKeeper, Keeper, make_keeper, new_seeds
from common.state_files import State
from common.types import BoolArray, FloatArray, IntArray, LaneStep

# A native vectorised environment costs the same for 1 lane as for 64; below this many lanes stepping
# them one by one is cheaper (CartPole, 2 cores: 45 us per native step, 15 us per single env).
NATIVE_FROM_LANES = 4

EXTRAS = {
    "LunarLander": "box2d",
    "BipedalWalker": "box2d",
    "CarRacing": "box2d",
    "MinAtar/": "minatar",
}


@dataclass(frozen=True)
class EnvInfo:
    """What the rest of the toolkit needs to know of an environment."""

    env_id: str
    observation_shape: tuple[int, ...]
    observation_dtype: str
    num_actions: int
    first_action: int
    reward_threshold: float | None


@functools.cache
def inspect_env(env_id: str) -> EnvInfo:
    """Make the environment once and describe it.

    Raises:
        ConfigError: the id is unknown, an extra is missing, or the spaces are not ``Box`` and
            ``Discrete``.
    """
    env = _make_one(env_id)
    try:
        if env.spec is not None and env.spec.id != env_id.rpartition(":")[2]:
            raise ConfigError(f"{env_id!r} names no version of an environment; write {env.spec.id}")
        observation_space, action_space = env.observation_space, env.action_space
        if not isinstance(action_space, gymnasium.spaces.Discrete):
            raise ConfigError(
                f"{env_id} has the action space {action_space}; a DQN needs Discrete actions"
            )
        if not isinstance(observation_space, gymnasium.spaces.Box):
            raise ConfigError(
                f"{env_id} has the observation space {type(observation_space).__name__}; "
                "a Box (one array) is needed, see gymnasium's FlattenObservation wrapper"
            )
        threshold = env.spec.reward_threshold if env.spec is not None else None
        return EnvInfo(
            env_id=env_id,
            observation_shape=tuple(int(size) for size in observation_space.shape),
            observation_dtype=np.dtype(observation_space.dtype).str,
            num_actions=int(action_space.n),
            first_action=int(action_space.start),
            reward_threshold=threshold,
        )
    finally:
        env.close()


def _make_one(env_id: str) -> gymnasium.Env[Any, Any]:
    try:
        if env_id.startswith("MinAtar/") and env_id not in gymnasium.registry:
            from minatar.gym import register_envs  # the package does not register by itself

            register_envs()
        with warnings.catch_warnings():
            # Of an id without a version; it is refused with a sentence of our own.
            warnings.filterwarnings("ignore", message=".*latest versioned environment")
            return gymnasium.make(env_id)
    except (Exception, SystemExit) as error:  # whatever a user's own environment may raise
        raise ConfigError(_explain(env_id, error)) from None


def _explain(env_id: str, error: BaseException) -> str:
    for prefix, extra in EXTRAS.items():
        missing = isinstance(error, gymnasium.error.DependencyNotInstalled | ModuleNotFoundError)
        unregistered = prefix.endswith("/") and isinstance(error, gymnasium.error.UnregisteredEnv)
        if env_id.startswith(prefix) and (missing or unregistered):
            return f'{env_id} needs the extra {extra!r}: pip install -c constraints.txt ".[{extra}]"'
    if isinstance(error, gymnasium.error.UnregisteredEnv):
        close = gymnasium_names_like(env_id)
        hint = f", did you mean {close}?" if close else ""
        return f"unknown environment {env_id!r}{hint} (any gymnasium id, or module:Env-v0)"
    return f"{env_id!r} could not be made: {type(error).__name__}: {' '.join(str(error).split())}"


def gymnasium_names_like(env_id: str) -> str | None:
    """Return the registered id nearest in spelling, if one is near."""
    import difflib

    found = difflib.get_close_matches(env_id, list(gymnasium.registry), n=1, cutoff=0.6)
    return found[0] if found else None


class Lanes:
    """The environments of one worker, stepped as one batch.

    Not shared: each worker makes its own from its own random stream.

    Args:
        env_id: the environment.
        num_lanes: how many of it.
        seeds: the worker's random stream.
        delay_seconds: slows each step.
        is_saved: whether ``state`` is going to be asked for.
    """

    def __init__(
        self,
        env_id: str,
        num_lanes: int,
        seeds: np.random.SeedSequence,
        delay_seconds: float = 0.0,
        is_saved: bool = False,
    ) -> None:
        self.info = inspect_env(env_id)
        self.num_lanes = num_lanes
        self._env = make_next_step_env(env_id, num_lanes)
        self._is_native = not isinstance(self._env, SyncVectorEnv | OneByOne)
        self._stream = seeds
        self._seeds = [int(seed) for seed in seeds.generate_state(num_lanes) >> 1]
        self._keeper: Keeper | None = make_keeper(self._env, self._seeds) if is_saved else None
        self._delay_seconds = delay_seconds
        self._ended: BoolArray = np.zeros(num_lanes, dtype=bool)
        self._episode_return = np.zeros(num_lanes, dtype=np.float64)
        self._episode_length = np.zeros(num_lanes, dtype=np.int64)
        self.finished_episodes: list[tuple[float, int]] = []
        self._observation: NDArray[Any] | None = None  # what the lanes show
        self._num_resumptions = 0
        self._is_placed = False  # by load_state
        self._first_observation: NDArray[Any] | None = None  # of new episodes, shown by the next step

    def reset(self) -> NDArray[Any]:
        """Start an episode in every lane and return the observations ``[L, ...]``.

        After ``load_state`` no episode is started: the observations are those of the running ones.

        Raises:
            ValueError: an observation is not finite or not of the stated shape.
        """
        # A native vectorised environment has one generator for all its lanes and takes one seed.
        if self._is_placed and self._observation is not None:
            self._is_placed = False
            return self._observation
        seed: Any = self._seeds[0] if self._is_native else self._seeds
        observation, _ = self._env.reset(seed=seed)
        self._ended = np.zeros(self.num_lanes, dtype=bool)
        self._episode_return[:] = 0
        self._episode_length[:] = 0
        self._observation = self._checked(observation)
        return self._observation

    def state(self) -> State:
        """Return where every lane is in its episode."""
        return {
            "observation": self._observation,
            "ended": self._ended,
            "episode_return": self._episode_return,
            "episode_length": self._episode_length,
            "finished_episodes": self.finished_episodes,
            "num_resumptions": self._num_resumptions,
            "environments": None if self._keeper is None else self._keeper.state(),
        }

    def load_state(self, state: State) -> BoolArray:
        """Bring the lanes to where they were when ``state`` was taken.

        Returns:
            The lanes ``[L]`` that could not be brought back. Each begins a new episode with the next
            step, as after an end; what it showed last is what its last step led to.
        """
        self._observation, self._ended = state["observation"], state["ended"]
        self._episode_return, self._episode_length = state["episode_return"], state["episode_length"]
        self.finished_episodes = [(paid, length) for paid, length in state["finished_episodes"]]
        self._num_resumptions = state["num_resumptions"] + 1
        self._is_placed = True
        lost = np.ones(self.num_lanes, dtype=bool)
        if self._keeper is not None and state["environments"] is not None:
            assert self._observation is not None
            same = self._keeper.restore(state["environments"], self._observation, self._ended)
            lost = ~same
        if lost.any():
            self._begin_anew(lost)
        return lost

    def _begin_anew(self, lost: BoolArray) -> None:
        seeds = new_seeds(self._stream, self._num_resumptions, self.num_lanes)
        if isinstance(self._keeper, EpisodeKeeper):
            self._keeper.cut(lost, seeds)
        else:  # all of them: they cannot be told apart
            seed: Any = seeds[0] if self._is_native else seeds
            observation, _ = self._env.reset(seed=seed)
            self._first_observation = self._checked(observation)
        self._ended = self._ended | lost
        self._episode_return[lost] = 0
        self._episode_length[lost] = 0

    def _first_step(self) -> LaneStep:
        """Return the step after an end, made by hand, in all lanes."""
        observation, self._first_observation = self._first_observation, None
        assert observation is not None
        nothing = np.zeros(self.num_lanes, dtype=bool)
        self._ended, self._observation = nothing, observation
        reward = np.zeros(self.num_lanes, dtype=np.float32)
        return LaneStep(observation, reward, nothing, nothing, nothing)

    def step(self, action: IntArray) -> LaneStep:
        """Step every lane once, ``[L]`` actions counted from 0.

        Finished episodes are appended to ``finished_episodes`` as (return, length).

        Raises:
            ValueError: an observation or a reward is not finite, or a shape is not as stated.
        """
        if self._delay_seconds:
            time.sleep(self._delay_seconds)
        if self._first_observation is not None:
            return self._first_step()
        valid = ~self._ended
        action = action + self.info.first_action if self.info.first_action else action
        if self._keeper is not None:
            self._keeper.note(action, self._ended)
        try:
            observation, reward, terminated, truncated, _ = self._env.step(action)
        except ValueError as error:  # of gymnasium's, which names no environment
            shape = self.info.observation_shape
            raise ValueError(
                f"a step of {self.info.env_id} failed: {error} (its space says observations of {shape})"
            ) from error
        # Copied, as observations are: an environment may give its own arrays and write to them again.
        reward = np.array(reward, dtype=np.float32)
        terminated, truncated = np.array(terminated, dtype=bool), np.array(truncated, dtype=bool)
        if not np.isfinite(reward.sum()) and not np.isfinite(reward).all():
            raise ValueError(f"{self.info.env_id} returned a reward that is not finite: {reward}")
        self._ended = terminated | truncated
        self._episode_return += reward
        self._episode_length += valid
        if self._ended.any():
            self._finish_episodes()
        self._observation = self._checked(observation)
        return LaneStep(self._observation, reward, terminated, truncated, valid)

    def close(self) -> None:
        """Close the environments."""
        self._env.close()

    def _finish_episodes(self) -> None:
        for lane in np.flatnonzero(self._ended):
            self.finished_episodes.append(
                (float(self._episode_return[lane]), int(self._episode_length[lane]))
            )
        self._episode_return[self._ended] = 0
        self._episode_length[self._ended] = 0

    def _checked(self, observation: NDArray[Any]) -> NDArray[Any]:
        expected = (self.num_lanes, *self.info.observation_shape)
        if observation.shape != expected:
            raise ValueError(
                f"{self.info.env_id} returned observations of shape {observation.shape[1:]}; its "
                f"space says {self.info.observation_shape}"
            )
        # The sum is finite whenever all its terms are, overflow apart; that is looked at again.
        if not np.isfinite(observation.sum()) and not np.isfinite(observation).all():
            raise ValueError(f"{self.info.env_id} returned an observation that is not finite")
        # The worker acts on this observation and writes it down only after the next step; the other
        # two kinds of environment already give a copy.
        return observation.copy() if self._is_native else observation


def make_lanes(config: Config, worker: int, seeds: np.random.SeedSequence) -> Lanes:
    """Return the lanes of one worker, slowed if it is the straggler."""
    straggler = parse_straggler(config.straggler, config.workers)
    delay = straggler[1] if straggler is not None and straggler[0] == worker else 0.0
    is_saved = config.checkpoint_seconds is not None
    return Lanes(config.env_id, config.envs_per_worker, seeds, delay, is_saved)


def make_next_step_env(env_id: str, num_lanes: int) -> VectorEnv[Any, Any, Any]:
    """Return a vector env in NEXT_STEP order: the environment's own where it has one."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)  # registers it; gymnasium.spec knows only the name
    spec = gymnasium.spec(name)
    if spec.vector_entry_point is not None and (num_lanes >= NATIVE_FROM_LANES or not spec.entry_point):
        native = _make_native(env_id, num_lanes)
        if native is not None:
            if native.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP:
                return native
            native.close()
            return OneByOne([lambda: _native_or_raise(env_id)] * num_lanes)
    return SyncVectorEnv(
        [functools.partial(gymnasium.make, env_id)] * num_lanes,
        autoreset_mode=AutoresetMode.NEXT_STEP,
    )


def _make_native(env_id: str, num_lanes: int) -> VectorEnv[Any, Any, Any] | None:
    try:
        return gymnasium.make_vec(env_id, num_lanes, vectorization_mode="vector_entry_point")
    except (ImportError, gymnasium.error.DependencyNotInstalled):
        return None  # the vectorised version needs a library that the plain one does not


def _native_or_raise(env_id: str) -> VectorEnv[Any, Any, Any]:
    return gymnasium.make_vec(env_id, 1, vectorization_mode="vector_entry_point")


class OneByOne(VectorEnv[Any, Any, Any]):
    """Adapts vector environments with SAME_STEP or DISABLED autoreset to NEXT_STEP.

    A batch that resets a lane inside a step, or only at the caller's request, cannot hold that lane
    back for one step while the others go on. A batch of one lane can, so each lane gets its own.
    """

    def __init__(self, makers: list[Callable[[], VectorEnv[Any, Any, Any]]]) -> None:
        self._envs = [make() for make in makers]
        first = self._envs[0]
        self.num_envs = len(self._envs)
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = first.single_observation_space
        self.single_action_space = first.single_action_space
        self._same_step = first.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
        self._ended = [False] * self.num_envs
        self._first_observation: list[NDArray[Any] | None] = [None] * self.num_envs

    def reset(  # type: ignore[override]
        self, *, seed: list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start an episode in every lane."""
        seeds = seed if seed is not None else [None] * self.num_envs
        self._ended = [False] * self.num_envs
        rows = [
            env.reset(seed=lane_seed, options=options)[0][0].copy()
            for env, lane_seed in zip(self._envs, seeds, strict=True)
        ]
        return np.stack(rows), {}

    def step(
        self, actions: IntArray
    ) -> tuple[NDArray[Any], FloatArray, BoolArray, BoolArray, dict[str, Any]]:
        """Step every lane once; a lane whose episode has ended moves on to its next episode."""
        rows = [self._step_lane(lane, actions[lane]) for lane in range(self.num_envs)]
        observation, reward, terminated, truncated = zip(*rows, strict=True)
        return (
            np.stack(observation),
            np.array(reward, dtype=np.float32),
            np.array(terminated, dtype=bool),
            np.array(truncated, dtype=bool),
            {},
        )

    def _step_lane(self, lane: int, action: int) -> tuple[NDArray[Any], float, bool, bool]:
        env = self._envs[lane]
        if self._ended[lane]:
            self._ended[lane] = False
            return self._next_episode(lane), 0.0, False, False
        observation, reward, terminated, truncated, info = env.step(np.array([action]))
        ended = bool(terminated[0] or truncated[0])
        self._ended[lane] = ended
        row = observation[0].copy()
        if ended and self._same_step:
            self._first_observation[lane] = row
            row = np.asarray(info["final_obs"][0]).copy()
        return row, float(reward[0]), bool(terminated[0]), bool(truncated[0])

    def _next_episode(self, lane: int) -> NDArray[Any]:
        if self._same_step:
            first = self._first_observation[lane]
            assert first is not None
            return first
        mask = np.ones(1, dtype=bool)
        observation, _ = self._envs[lane].reset(options={"reset_mask": mask})
        return np.asarray(observation[0]).copy()

    def close(self, **kwargs: Any) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close(**kwargs)
