"""A device that is not there, played by the CPU, so that the accelerator's code path can be tested.

All memory that is made on it or moved to it is remembered. A function that gets tensors of both sides
raises, as torch does where memories differ; far ones have no ``numpy()``; moves are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

FAR, NEAR = torch.device("cuda"), torch.device("cpu")
DEVICE_GETTER, DATA_SETTER = torch.Tensor.device.__get__, torch.Tensor.data.__set__


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


class FarDevice(TorchFunctionMode):
    """Plays the device ``cuda`` while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.moves: Counter[str] = Counter()
        self._memories: dict[int, torch.UntypedStorage] = {}  # kept, so that no address is used again

    def has(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lives on the far device."""
        return tensor.untyped_storage().data_ptr() in self._memories

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == DEVICE_GETTER:
            return FAR if self.has(args[0]) else NEAR
        if func is torch.Tensor.copy_:
            self._count(args[1], self.has(args[0]))
            return func(*args, **kwargs)
        if func in (torch.Tensor.to, torch.Tensor.cpu):
            where = [each for each in args[1:] if isinstance(each, torch.device)]
            if where or func is torch.Tensor.cpu:
                return self._move(args[0], where == [FAR])
        made_far = torch.device(kwargs.get("device") or NEAR) == FAR
        if made_far:
            kwargs["device"] = NEAR
        sides = {self.has(each) for each in tensors_in([args, kwargs]) if each.dim() > 0}
        if len(sides) == 2 and func != DATA_SETTER:
            raise RuntimeError(f"{func} got tensors of both devices")
        if func is torch.Tensor.numpy and True in sides:
            raise TypeError("a tensor of another device has no numpy()")
        result = func(*args, **kwargs)
        if made_far or True in sides:
            self._remember(result)
        return result

    def _move(self, tensor: torch.Tensor, goes_far: bool) -> torch.Tensor:
        if self._count(tensor, goes_far):
            tensor = tensor.clone()
            self._remember(tensor if goes_far else None)
        return tensor

    def _count(self, source: torch.Tensor, goes_far: bool) -> bool:
        crosses = self.has(source) != goes_far
        self.moves["there" if goes_far else "back"] += crosses
        return crosses

    def _remember(self, value: Any) -> None:
        for tensor in tensors_in(value):
            memory = tensor.untyped_storage()
            self._memories[memory.data_ptr()] = memory
