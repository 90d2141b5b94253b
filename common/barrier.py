"""The barrier between a learner and its workers: round numbers in shared words.

No primitive of ``multiprocessing`` is used: those have a lock inside that a killed process keeps. A
word has one writer, and whoever waits for it sleeps a little and asks whether to stop.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.shared_memory import SharedArrays, memory_fence

ROUND, ENV_STEPS = 0, 1
WORDS = 8  # one cache line per writer
OVER = -1


class RoundBarrier:
    """Who has finished which round, and which round has begun.

    The learner begins round 1, each worker arrives when it has done its part of it, the learner learns
    while nobody else does anything, and begins round 2.

    Args:
        num_workers: processes that arrive, the learner not counted.
    """

    def __init__(self, num_workers: int) -> None:
        # begun: written by the learner alone, read by the workers. arrived[w]: written by worker w
        # alone, read by the learner. In both the round is written last, behind a fence, so that who
        # sees the round sees all that was done before it: rows, weights and the other word.
        self._words = SharedArrays(
            {
                "begun": ((WORDS,), "int64"),
                "arrived": ((num_workers, WORDS), "int64"),
            }
        )

    def begin(self, round_number: int, env_steps: int) -> None:
        """Start a round for all workers. Only the learner calls it.

        Args:
            round_number: counted from 1, or ``OVER`` when there will be no further one.
            env_steps: the global clock that every worker uses in this round.
        """
        begun = self._words["begun"]
        begun[ENV_STEPS] = env_steps
        memory_fence()
        begun[ROUND] = round_number

    @property
    def round_number(self) -> int:
        """The last round that was started; 0 before the first."""
        return int(self._words["begun"][ROUND])

    def has_begun(self, round_number: int) -> bool:
        """Return whether a round has been started."""
        return int(self._words["begun"][ROUND]) == round_number

    @property
    def is_over(self) -> bool:
        """Whether the learner has started its last round."""
        return int(self._words["begun"][ROUND]) == OVER

    @property
    def env_steps(self) -> int:
        """The global clock at the start of the round. The clock itself moves on during a round."""
        memory_fence()
        return int(self._words["begun"][ENV_STEPS])

    def arrive(self, worker: int, round_number: int, unpublished_env_steps: int) -> None:
        """Say that a worker has done its part of a round. Only that worker calls it."""
        arrived = self._words["arrived"][worker]
        arrived[ENV_STEPS] = unpublished_env_steps
        memory_fence()
        arrived[ROUND] = round_number

    def next_round(self, worker: int, takes_over: bool = False) -> int:
        """Return the first round that a worker has not done its part of. Only that worker calls it.

        Args:
            worker: which.
            takes_over: whether it takes the place of one that died: what that had made and not
                published is gone.
        """
        arrived = self._words["arrived"][worker]
        if takes_over:
            arrived[ENV_STEPS] = 0
        return int(arrived[ROUND]) + 1

    def all_arrived(self, round_number: int, gone: Sequence[bool] = ()) -> bool:
        """Return whether every worker has done its part of a round, but for those gone for good."""
        everybody = all(
            self._words["arrived"][worker, ROUND] == round_number
            for worker in range(len(self._words["arrived"]))
            if not (gone and gone[worker])
        )
        memory_fence()
        return everybody

    def unpublished_env_steps(self, gone: Sequence[bool] = ()) -> int:
        """Return the env steps made and not yet published on arrival; those of the gone never are."""
        env_steps = self._words["arrived"][:, ENV_STEPS].tolist()
        return sum(0 if gone and gone[worker] else made for worker, made in enumerate(env_steps))
