"""The audit around people's own loops: torch's own optimizers, modules of any shape, bad use."""

from __future__ import annotations

import copy
import os
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import audited_children
import numpy as np
import pytest
import torch
from racing import children, make_flags
from torch import nn

import common.audit
from common.audit import OWNER, SharedAudit
from common.audited_module import PID_SHIFT

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
    "adam, fused": lambda parameters: torch.optim.Adam(parameters, lr=0.01, fused=True),
}
NUM_WEIGHTS = 4 * 8 + 8 + 8 * 2 + 2


def make_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def sgd(model: nn.Module, rate: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate)


def data(number: int = 0) -> torch.Tensor:
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(number))


def loss_of(model: nn.Module, number: int = 0) -> torch.Tensor:
    loss: torch.Tensor = (model(data(number)) - 0.5).square().mean()
    return loss


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int = 0) -> None:
    optimizer.zero_grad()
    loss_of(model, number).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def weights_of(model: nn.Module) -> np.ndarray:
    return np.concatenate([p.detach().reshape(-1).numpy() for p in model.parameters()])


def workers(number: int, write: str = "in-place") -> tuple[SharedAudit, list[Any], list[Any]]:
    """Return an audit and the models and wrapped optimizers of its workers, all in this process."""
    audit = SharedAudit(make_model(), number, write)
    models = [make_model(seed=1 + worker) for worker in range(number)]
    optimizers = [audit.wrap(model, sgd(model), worker) for worker, model in enumerate(models)]
    return audit, models, optimizers


# --- The loop stays what it was ---


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_one_worker_takes_the_steps_that_the_loop_takes_without_the_audit(kind: str) -> None:
    plain, model = make_model(), make_model()
    plain_optimizer = OPTIMIZERS[kind](plain.parameters())
    audit = SharedAudit(model, 1)
    optimizer = audit.wrap(model, own := OPTIMIZERS[kind](model.parameters()), 0)
    first = weights_of(plain)
    for number in range(60):
        one_step(plain, plain_optimizer, number)
        one_step(model, optimizer, number)
    assert optimizer is own
    assert np.abs(weights_of(plain) - first).max() > 0.02
    # Rounding to 2^-24 differs from float32's own; 60 steps of a smooth loss do not magnify it much.
    np.testing.assert_allclose(weights_of(model), weights_of(plain), atol=2e-5, rtol=0)
    report = audit.report()
    assert report["updates_issued"] == 60 and report["elements"] == NUM_WEIGHTS
    assert report["writes_lost"] == 0 and report["auditable"]


def test_schedulers_and_closures_see_an_optimizer_like_any_other() -> None:
    model = make_model()
    audit = SharedAudit(model, 1)
    optimizer = audit.wrap(model, sgd(model, 1.0), 0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    losses = []
    for _ in range(3):
        losses.append(optimizer.step(closure).item())
        scheduler.step()
    assert losses == sorted(losses, reverse=True)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.125)
    assert audit.report()["updates_issued"] == 3


def test_several_evaluations_within_one_step_are_one_update() -> None:
    model = make_model()
    audit = SharedAudit(model, 1)
    optimizer = audit.wrap(model, torch.optim.LBFGS(model.parameters(), lr=0.5), 0)
    before = loss_of(model).item()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)
    assert loss_of(model).item() < 0.5 * before
    report = audit.report()
    assert report["updates_issued"] == 1 and report["writes_lost"] == 0


def test_modules_that_are_no_flat_vector_keep_their_values_and_their_ties() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
            self.norm = nn.BatchNorm2d(3)
            self.head = nn.Linear(3, 3)
            self.tied = nn.Linear(3, 3)
            self.tied.weight = self.head.weight
            self.scale = nn.Parameter(torch.tensor(2.0))
            self.empty = nn.Parameter(torch.empty(0))
            self.frozen = nn.Parameter(torch.full((2, 2), 0.25), requires_grad=False)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            features = self.norm(self.convolution(image)).mean(dim=(2, 3))
            return self.scale * self.tied(self.head(features))

    torch.manual_seed(0)
    model = Odd()
    image = torch.randn(5, 2, 6, 6)
    with torch.no_grad():
        expected = copy.deepcopy(model)(image)
    audit = SharedAudit(model, 1)
    optimizer = audit.wrap(model, torch.optim.AdamW(model.parameters(), lr=0.01), 0)
    output = model(image)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=0)
    output.square().mean().backward()
    optimizer.step()
    assert model.tied.weight is model.head.weight
    assert (model.frozen == 0.25).all() and model.scale.item() != 2.0
    report = audit.report()
    assert report["elements"] == sum(p.numel() for p in model.parameters()) == 2 * 3 * 9 + 3 + 6 + 20
    assert report["writes_lost"] == 0 and report["updates_issued"] == 1
    assert int(model.norm.num_batches_tracked) == 1, "buffers are the module's own"


# --- Several workers, one step at a time ---


def test_a_worker_begins_with_the_shared_weights_and_computes_at_the_newest() -> None:
    audit, (first, second), (step_first, step_second) = workers(2)
    assert np.array_equal(weights_of(first), audit.master.vector())
    assert np.array_equal(weights_of(second), audit.master.vector())
    one_step(first, step_first)
    newest = audit.master.vector()
    assert not np.array_equal(weights_of(second), newest)
    with torch.no_grad():
        second(data())  # acting reads nothing
    assert not np.array_equal(weights_of(second), newest)
    loss_of(second).backward()  # type: ignore[no-untyped-call]
    assert np.array_equal(weights_of(second), newest)
    one_step(first, step_first)
    loss_of(second).backward()  # type: ignore[no-untyped-call]
    assert np.array_equal(weights_of(second), newest), "gradients that add up are of the same weights"
    step_second.step()
    assert np.array_equal(weights_of(second), audit.master.vector())


def test_in_place_both_changes_arrive() -> None:
    audit, models, optimizers = workers(2)
    first = audit.master.vector().astype(float)
    for number, model in enumerate(models):
        loss_of(model, number).backward()  # type: ignore[no-untyped-call]
    gradients = [
        np.concatenate([p.grad.reshape(-1).numpy() for p in model.parameters()]) for model in models
    ]
    for optimizer in optimizers:
        optimizer.step()
    expected = first - 0.1 * sum(gradient.astype(float) for gradient in gradients)
    np.testing.assert_allclose(audit.master.vector(), expected, atol=1e-6)
    report = audit.report()
    assert report["writes_lost"] == 0 and report["survivors_by_worker"] == [1, 1]


@pytest.mark.parametrize("number", [2, 4])
def test_copying_back_undoes_what_the_schedule_says(number: int) -> None:
    audit, models, optimizers = workers(number, "copy-back")
    for _ in range(3):
        for worker, model in enumerate(models):
            optimizers[worker].zero_grad()
            loss_of(model, worker).backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
    report = audit.report()
    assert report["updates_issued_by_worker"] == [3] * number
    assert report["writes_lost"] == 3 * (number - 1) * NUM_WEIGHTS
    assert report["survivors_by_worker"] == [0] * (number - 1) + [3]
    assert report["lost_whole_at_most"] == report["damaged_updates_at_least"] == 3 * (number - 1)


def test_copying_back_one_after_the_other_loses_nothing() -> None:
    audit, models, optimizers = workers(2, "copy-back")
    for number in range(6):
        one_step(models[number % 2], optimizers[number % 2], number)
    report = audit.report()
    assert report["writes_lost"] == 0 and report["survivors_by_worker"] == [3, 3]
    assert report["optimizer_state"] == "the program's own, not audited"


def test_the_report_brings_the_last_weights_into_the_first_model() -> None:
    model = make_model()
    audit = SharedAudit(model, 1)
    worker_model = make_model(1)
    optimizer = audit.wrap(worker_model, sgd(worker_model), 0)
    before = weights_of(model).copy()
    one_step(worker_model, optimizer)
    assert np.array_equal(weights_of(model), before)
    audit.report()
    assert np.array_equal(weights_of(model), weights_of(worker_model))
    assert not np.array_equal(weights_of(model), before)


def test_only_the_maker_reads_the_report() -> None:
    audit = SharedAudit(make_model(), 1)
    as_in_a_child = copy.copy(audit)
    for read in (as_in_a_child.report, as_in_a_child.sample, as_in_a_child.pull):
        with pytest.raises(RuntimeError, match="only the process that made the audit"):
            read()
    assert audit.report()["updates_issued"] == 0


# --- Several processes ---


@pytest.mark.slow  # by default the program of docs/how-to/audit-your-own-loop.md is run
@pytest.mark.multiprocess
def test_processes_with_and_without_a_lock_of_their_own() -> None:
    model, number = make_model(), 150
    # (how it writes, whether under a lock), one after the other in the same two processes.
    ways = [("in-place", True), ("copy-back", True), ("copy-back", False), ("in-place", False)]
    audits = [SharedAudit(model, 2, write) for write, _ in ways]
    locks = [audited_children.make_lock() if lock else None for _, lock in ways]
    flags = make_flags()
    run = audited_children.train_each
    with children(*((run, flags, audits, w, number, locks) for w in range(2))) as processes:
        pass
    assert [process.exitcode for process in processes] == [0, 0]
    for (write, lock), audit in zip(ways, audits, strict=True):
        report = audit.report()
        assert report["auditable"] and report["updates_issued_by_worker"] == [number] * 2
        assert np.array_equal(weights_of(model), audit.master.vector())
        if lock:
            assert report["writes_lost"] == 0 and report["survivors_by_worker"] == [number] * 2
        elif write == "copy-back":
            assert report["lost_whole_at_most"] > 0 and sum(report["survivors_by_worker"]) < 2 * number
        else:
            assert 0 <= report["writes_lost"] <= report["writes_issued"]


def test_a_number_belongs_to_its_process_while_that_lives() -> None:
    audit, model = SharedAudit(make_model(), 2), make_model()
    word = audit.master.words[1:2, OWNER]
    word[0] = os.getppid() << PID_SHIFT
    with pytest.raises(RuntimeError, match=f"worker number 1 is used by process {os.getppid()}"):
        audit.wrap(model, sgd(model), 1)
    ended = subprocess.Popen(["true"])
    ended.wait(10)
    word[0] = ended.pid << PID_SHIFT
    optimizer = audit.wrap(model, sgd(model), 1)
    one_step(model, optimizer)
    assert audit.report()["updates_issued_by_worker"] == [0, 1]


@pytest.mark.slow  # the same with a process that really is a worker
@pytest.mark.multiprocess
def test_two_processes_with_one_number_are_found_out() -> None:
    audit, flags = SharedAudit(make_model(), 2), make_flags()
    with children((audited_children.hold_number, flags, audit, 1)) as (process,):
        audited_children.wait_for(flags, audited_children.HELD)
        model = make_model()
        with pytest.raises(RuntimeError, match=f"number 1 is used by process {process.pid}"):
            audit.wrap(model, sgd(model), 1)
        flags["flags"][audited_children.LEAVE] = 1
    assert process.exitcode == 0
    audit.wrap(model, sgd(model), 1)  # its process is gone, so the number is free again


# --- Bad use ---


def test_a_number_that_was_taken_meanwhile_is_found_out_at_the_next_step() -> None:
    audit, (model, _), (optimizer, _) = workers(2)
    one_step(model, optimizer)
    audit.master.words[0, OWNER] += 1  # as another process does that came at the same time
    with pytest.raises(RuntimeError, match="worker number 0 was taken by another module or process"):
        one_step(model, optimizer)
    assert audit.report()["updates_issued"] == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_copy_may_not_step() -> None:
    audit, (model,), (optimizer,) = workers(1)
    one_step(model, optimizer)
    child = os.fork()
    if child == 0:  # it must leave without pytest's own ending
        try:
            optimizer.step()
        except RuntimeError as error:
            os._exit(7 if "call audit.wrap in the process that steps" in str(error) else 1)
        os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    one_step(model, optimizer)
    assert audit.report()["updates_issued"] == 2


@pytest.mark.parametrize(
    "model, message",
    [
        (nn.Linear(2, 2).half(), "'weight' is torch.float16 on cpu"),
        (nn.Linear(2, 2).to(torch.bfloat16), "'weight' is torch.bfloat16 on cpu"),
        (nn.Linear(2, 2).double(), r"'weight' is torch.float64.*model.float\(\).cpu\(\)"),
        (nn.LazyLinear(2), "'weight' has no shape yet"),
        (nn.Linear(2, 2, device="meta"), "'weight' is torch.float32 on meta"),
    ],
)
def test_parameters_of_another_kind_are_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        SharedAudit(model, 1)
    audit = SharedAudit(nn.Linear(2, 2), 1)
    with pytest.raises(TypeError, match=message):
        audit.wrap(model, sgd(nn.Linear(2, 2)), 0)


def test_integer_parameters_are_refused() -> None:
    model = nn.Linear(2, 2)
    model.steps = nn.Parameter(torch.zeros(1, dtype=torch.int64), requires_grad=False)
    with pytest.raises(TypeError, match=r"'steps' is torch.int64"):
        SharedAudit(model, 1)
    del model.steps
    assert SharedAudit(model, 1).report()["elements"] == 6


def test_what_cannot_be_audited_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="no parameters"):
        SharedAudit(nn.ReLU(), 1)
    with pytest.raises(ValueError, match="num_workers is 0"):
        SharedAudit(make_model(), 0)
    with pytest.raises(ValueError, match="'sideways' is not allowed; it is one of in-place, copy-back"):
        SharedAudit(make_model(), 1, write="sideways")
    for weight in (-20.5, float("nan")):
        model = make_model()
        nn.init.constant_(model[0].weight, weight)  # type: ignore[index]
        with pytest.raises(ValueError, match=rf"a weight of {weight:g}.*within \+-16"):
            SharedAudit(model, 1)


def test_a_wrong_worker_module_or_optimizer_is_refused() -> None:
    audit, model = SharedAudit(make_model(), 2), make_model()
    for worker in (-1, 2, "0"):
        with pytest.raises(ValueError, match=f"worker {worker!r} is not allowed.*workers 0 to 1"):
            audit.wrap(model, sgd(model), worker)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="differ from those that the audit was made with"):
        audit.wrap(nn.Linear(4, 2), sgd(model), 0)
    with pytest.raises(ValueError, match="4 of the optimizer's 4 parameters are not the module's"):
        audit.wrap(model, sgd(make_model()), 0)
    with pytest.raises(TypeError, match=r"Sequential is not a torch\.optim\.Optimizer"):
        audit.wrap(model, model, 0)  # type: ignore[type-var]
    assert audit.report()["updates_issued"] == 0


MOVES: dict[str, Callable[[Any], Any]] = {
    "to": lambda model: model.to(torch.float64),
    "data": lambda model: setattr(model[0].weight, "data", torch.zeros(8, 4)),
    "share_memory": lambda model: model.share_memory(),
}


@pytest.mark.parametrize("move", MOVES)
def test_parameters_that_left_shared_memory_are_found_out(move: str) -> None:
    audit, (model,), (optimizer,) = workers(1)
    one_step(model, optimizer)
    loss_of(model).backward()  # type: ignore[no-untyped-call]
    MOVES[move](model)
    with pytest.raises(RuntimeError, match=r"'0.weight' is not in shared memory any longer"):
        optimizer.step()
    with pytest.raises(RuntimeError, match=r"'0\.weight' is not in shared memory any longer"):
        optimizer.zero_grad()
        optimizer.step()
    assert audit.report()["updates_issued"] == 1


def test_a_parameter_that_is_added_later_is_found_out() -> None:
    audit, (model,), (optimizer,) = workers(1)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    with pytest.raises(ValueError, match="1 of the optimizer's 5 parameters are not the module's"):
        one_step(model, optimizer)
    assert audit.report()["updates_issued"] == 0


def test_weights_changed_between_steps_are_found_out() -> None:
    audit, (model,), (optimizer,) = workers(1)
    one_step(model, optimizer)
    with torch.no_grad():
        model[0].weight.clamp_(-0.01, 0.01)
    with pytest.raises(RuntimeError, match=r"changed outside optimizer.step\(\)"):
        loss_of(model)
    optimizer.step()  # without a forward pass the change is not undone: it is part of this update
    audit.report()
    assert np.abs(audit.master.vector()[:32]).max() < 0.02
    assert audit.report()["updates_issued"] == 2


def test_a_step_hook_may_change_the_weights_too() -> None:
    audit, model = SharedAudit(make_model(), 1), make_model()
    optimizer = sgd(model)

    def clamp(*arguments: Any) -> None:
        with torch.no_grad():
            model[0].weight.clamp_(-0.01, 0.01)  # type: ignore[index, union-attr, operator]

    optimizer.register_step_post_hook(clamp)
    audit.wrap(model, optimizer, 0)
    for number in range(3):
        one_step(model, optimizer, number)
    assert np.abs(weights_of(model)[:32]).max() <= 0.01 + 2**-24
    report = audit.report()
    assert report["writes_lost"] == 0 and report["updates_issued"] == 3


def test_a_second_thread_is_refused() -> None:
    audit, (model,), (optimizer,) = workers(1)
    one_step(model, optimizer)
    caught: list[BaseException] = []

    def step() -> None:
        try:
            optimizer.step()
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    thread.join(10)
    assert "the optimizer of worker 0 was stepped by two threads" in str(caught[0])
    one_step(model, optimizer)
    assert audit.report()["updates_issued"] == 2


def test_weights_averaged_outside_the_audit_give_a_reason_and_no_number() -> None:
    audit, models, optimizers = workers(2)
    for number in range(3):
        one_step(models[0], optimizers[0], number)
    before = audit.master.weights.copy()
    for number in range(2):
        one_step(models[1], optimizers[1], number)
    audit.master.weights[:] = (audit.master.weights + before) / 2
    report = audit.report()
    assert not report["auditable"] and "something" in report["reason"]
    assert report["writes_lost"] is None and report["survivors_by_worker"] is None


def test_beyond_the_range_training_goes_on_without_a_number() -> None:
    audit, (model,), _ = workers(1)
    optimizer = audit.wrap(model, sgd(model, rate=1e4), 0)
    for number in range(3):
        one_step(model, optimizer, number)
    assert np.abs(weights_of(model)).max() > 16
    report = audit.report()
    assert not report["auditable"] and "left +-16 at update 1" in report["reason"]
    assert report["writes_lost"] is None and report["updates_issued"] == 3


def test_wrapping_again_replaces_what_was_there() -> None:
    audit, (model,), (old,) = workers(1)
    one_step(model, old)
    new = audit.wrap(model, torch.optim.Adam(model.parameters(), lr=0.01), 0)
    one_step(model, new)
    assert audit.report()["updates_issued"] == 2
    old.step()  # the old one is not audited any more, and so its change is one from outside
    with pytest.raises(RuntimeError, match=r"changed outside optimizer.step\(\)"):
        one_step(model, new)


def test_the_interface_is_found_where_the_audit_is() -> None:
    from common.audited_module import SharedAudit as Direct

    assert common.audit.SharedAudit is Direct
    with pytest.raises(AttributeError, match="no attribute 'SharedAuditt'"):
        common.audit.SharedAuditt  # noqa: B018
