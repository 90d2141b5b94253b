"""Environments brought back to where they stood, so that a resumed run goes on in its running episodes.

gymnasium cannot save an environment. Where the whole state lies in known arrays (CartPole's own vector
version), those are saved. Elsewhere what led to the state is: the random generator as it was when the
running episode began, and the actions since. They are played again, and it is looked at whether the
observation and the generator come out the same. Where they do not, the caller begins a new episode.
"""

from __future__ import annotations

from array import array
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from common.state_files import State, fill
from common.types import BoolArray, IntArray

# Native vector environments by class, and the arrays that are all they know, beside their generator.
NATIVE_ARRAYS = {"CartPoleVectorEnv": ("state", "steps", "prev_done")}
MOST_ACTIONS = 1_000_000  # of one episode: 8 MB, and seconds to play again


class Keeper(Protocol):
    """Keeps what it takes to bring the environments of some lanes back."""

    def note(self, action: IntArray, ended: BoolArray) -> None:
        """Take note of a step that is about to be made; a lane that has ended begins an episode."""

    def state(self) -> State:
        """Return what it takes."""

    def restore(self, state: State, observation: NDArray[Any], ended: BoolArray) -> BoolArray:
        """Bring the environments back and return which lanes ``[L]`` are where they were.

        Args:
            state: what ``state`` returned.
            observation: ``[L, ...]`` what each lane showed last.
            ended: ``[L]`` whether that ended its episode.
        """


def make_keeper(env: VectorEnv[Any, Any, Any], seeds: list[int]) -> Keeper | None:
    """Return who can bring this vector environment back; None if nobody can.

    Args:
        env: in NEXT_STEP order.
        seeds: of its lanes' first episodes.
    """
    if type(env.unwrapped).__name__ in NATIVE_ARRAYS:
        return NativeKeeper(env.unwrapped, seeds)
    return EpisodeKeeper(env, seeds) if isinstance(env, SyncVectorEnv) else None


class NativeKeeper:
    """Saves the arrays of a vector environment that consists of arrays.

    Args:
        env: of a class in ``NATIVE_ARRAYS``.
        seeds: the first is the environment's.
    """

    def __init__(self, env: Any, seeds: list[int]) -> None:
        self._env, self._seed = env, seeds[0]
        self._names = NATIVE_ARRAYS[type(env).__name__]

    def note(self, action: IntArray, ended: BoolArray) -> None:
        """Do nothing: all is in the arrays."""

    def state(self) -> State:
        """Return the arrays and the generator."""
        arrays = {name: getattr(self._env, name) for name in self._names}
        return {"arrays": arrays, "generator": self._env.np_random.bit_generator.state}

    def restore(self, state: State, observation: NDArray[Any], ended: BoolArray) -> BoolArray:
        """Put the arrays and the generator back."""
        self._env.reset(seed=self._seed)
        for name in self._names:
            fill(getattr(self._env, name), state["arrays"][name], name)
        self._env.np_random.bit_generator.state = state["generator"]
        shown = self._env.state.T.astype(observation.dtype)
        same: BoolArray = (shown == observation).all(axis=1) & (self._env.prev_done == ended)
        return same if same.all() else np.zeros_like(same)  # one generator for all lanes


class EpisodeKeeper:
    """Remembers how each lane's running episode began and what was done in it.

    An episode that goes on for ever would be remembered for ever, and a resumed run would play all of
    it again. Beyond ``MOST_ACTIONS`` it is not remembered, and cut where a run is resumed.

    Args:
        env: single environments, stepped one after the other.
        seeds: of their first episodes.
    """

    def __init__(self, env: SyncVectorEnv, seeds: list[int]) -> None:
        self._env, self._seeds = env, seeds
        # The generator's state when the episode began; None for the first one, which the seed began.
        self._began: list[State | None] = [None for _ in seeds]
        self._actions = [array("q") for _ in seeds]
        self._is_whole = [True for _ in seeds]

    def note(self, action: IntArray, ended: BoolArray) -> None:
        """Remember an action, or how the episode that begins now begins."""
        if ended.any():
            for lane in np.flatnonzero(ended).tolist():
                self._began[lane] = _generator_state(self._env.envs[lane])
                self._actions[lane], self._is_whole[lane] = array("q"), True
        for lane, (taken, has_ended) in enumerate(zip(action.tolist(), ended.tolist(), strict=True)):
            if not has_ended and self._is_whole[lane]:
                self._actions[lane].append(taken)
                if len(self._actions[lane]) > MOST_ACTIONS:
                    self._actions[lane], self._is_whole[lane] = array("q"), False

    def state(self) -> State:
        """Return the episodes so far, with the generators as they are now to compare with."""
        return {
            "seeds": self._seeds,
            "began": self._began,
            "actions": [np.array(actions, dtype=np.int64) for actions in self._actions],
            "is_whole": self._is_whole,
            "now": [_generator_state(env) for env in self._env.envs],
        }

    def restore(self, state: State, observation: NDArray[Any], ended: BoolArray) -> BoolArray:
        """Play the episodes again."""
        self._seeds = state["seeds"]
        self._env.reset(seed=list(self._seeds))
        same = np.zeros(len(self._seeds), dtype=bool)
        for lane, seed in enumerate(self._seeds):
            if not state["is_whole"][lane]:
                continue
            self._began[lane] = state["began"][lane]
            self._actions[lane] = array("q", state["actions"][lane].tolist())
            try:
                shown = self._play(lane, seed)
            except Exception:  # the user's own environment, doing what it has not done before
                continue
            generator = _generator_state(self._env.envs[lane])
            shown = np.asarray(shown, dtype=observation.dtype)
            is_known = generator is not None and generator == state["now"][lane]
            same[lane] = is_known and np.array_equal(shown, observation[lane])
        self._env._autoreset_envs = ended.copy()  # the step that follows an end begins an episode
        return same

    def cut(self, lanes: BoolArray, seeds: list[int]) -> None:
        """Have some lanes ``[L]`` begin an episode, of other seeds, at the next step."""
        for lane in np.flatnonzero(lanes):
            self._env.envs[lane].reset(seed=seeds[lane])
            self._env._autoreset_envs[lane] = True

    def _play(self, lane: int, seed: int) -> Any:
        env, began = self._env.envs[lane], self._began[lane]
        shown, _ = env.reset(seed=seed)
        if began is not None:
            env.unwrapped.np_random.bit_generator.state = began
            shown, _ = env.reset()
        for action in np.array(self._actions[lane]):
            shown, *_ = env.step(action)
        return shown


def _generator_state(env: Any) -> State | None:
    """Return the state of an environment's random generator; None if it uses none of gymnasium's."""
    generator = getattr(env.unwrapped, "_np_random", None)  # np_random itself would make one
    return None if generator is None else generator.bit_generator.state


def new_seeds(seeds: np.random.SeedSequence, number: int, count: int) -> list[int]:
    """Return seeds for lanes that cannot be brought back: others at each resumption.

    Args:
        seeds: the lanes' own.
        number: of the resumption, from 1.
        count: of lanes.
    """
    fresh = np.random.SeedSequence(seeds.entropy, spawn_key=(*seeds.spawn_key, number))
    return [int(seed) for seed in fresh.generate_state(count) >> 1]
