"""neural replay: a tensor of any step of a recorded run, made again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuraldbg.errors import NotRecorded, UnknownName, UsageError
from neuraldbg.surfaces.cli.progress import progress
from neuraldbg.surfaces.cli.rerunning import check, confirm

if TYPE_CHECKING:
    from neuraldbg.records import Site

WHAT = ("output", "input", "gradient", "weight", "weight_gradient")
NOT_IDENTICAL = 6
ENDINGS = (".safetensors", ".npy")


@click.command(short_help="Make any step of a recorded run again.")
@click.argument("run", required=False)
@click.option("--step", metavar="N", type=click.IntRange(min=0), required=True, help="The update, counted from 0.")
@click.option("--layer", metavar="LAYER", help="Show a tensor of this layer.  [default: only whether the step agrees]")
@click.option("--what", metavar="WHAT", default="output", help=f"{', '.join(WHAT)}.  [default: output]")
@click.option("--save", metavar="FILE", help="Write the tensor as .safetensors or .npy.")
@click.option("--slice", "part", metavar="SLICE", help="Show the values of a part: '0, :8'; ... is all of it.")
@click.option("--deterministic", is_flag=True, help="Repeatable kernels, also where the run did without.")
@click.option("--timeout", metavar="SECONDS", type=click.FloatRange(min=1), default=600.0, help="Time for all of it.")
@click.option("--yes", is_flag=True, help="Do not ask before the script is run again.")
@click.option("--json", "as_json", is_flag=True, help="The answer as JSON.")
def command(run: str | None, **options: Any) -> int:
    """Make step N of RUN again and show a tensor of it that was never stored, with the proof that it is the same. RUN
    was recorded by `neural debug --record full`; its script is run up to where its models are built, in a copy of its
    working directory. The exit code is 6 when the step is not identical. Without RUN: the newest.
    """
    _check_options(options)
    from neuraldbg.replay.asking import Wanted, made_again
    from neuraldbg.replay.recorded import Recorded
    from neuraldbg.surfaces.cli.runs import open_run

    run_dir, trace = open_run(run)
    site = None if options["layer"] is None else trace.site(options["layer"])
    info = trace.run
    trace.close()
    check(info, run_dir)
    Recorded(run_dir).state_for(options["step"])
    confirm(info, run_dir, times="up to its first pass", yes=options["yes"])
    asked = [] if site is None else [_place(site)]
    wanted = Wanted(options["step"], asked, deterministic=options["deterministic"])
    with (
        progress(quiet=options["as_json"]) as tell,
        made_again(run_dir, info, wanted, seconds=options["timeout"]) as (folder, answer),
    ):
        tell("the step is made")
        found = _found(answer, site, options["what"], options["step"])
        if site is not None and found is not None:
            found |= _values(folder, site, options)
    if site is not None:
        answer["proof"], answer["identical"] = answer["proofs"][options["what"]]
    _show(answer, site, found, options)
    return NOT_IDENTICAL if answer["identical"] is False else 0


def _check_options(options: dict[str, Any]) -> None:
    from neuraldbg.capture.slices import parse_slice

    what, save, part = options["what"], options["save"], options["part"]
    if what not in WHAT:
        raise UnknownName("tensor", what, WHAT, listed_by="`neural replay --help`")
    if save is not None and not save.endswith(ENDINGS):
        raise UsageError(f"cannot write {save}: --save takes a name that ends in {' or '.join(ENDINGS)}")
    for name, given in (("--save", save), ("--slice", part)):
        if given is not None and options["layer"] is None:
            raise UsageError(f"{name} needs a --layer")
    parse_slice(part)


def _place(site: Site) -> tuple[int, str]:
    return (site.id, "") if site.model is None else (site.model, site.path)


def _found(answer: dict[str, Any], site: Site | None, what: str, step: int) -> dict[str, Any] | None:
    if site is None:
        return None
    number, path = _place(site)
    told: dict[str, Any] = answer["layers"][f"{number}/{path}"]
    if what not in told:
        there = ", ".join(name for name in WHAT if name in told)
        raise NotRecorded(f"{site.path!r} has no {what.replace('_', ' ')} at step {step}; it has {there or 'nothing'}")
    found: dict[str, Any] = told[what]
    return found


def _values(folder: Path, site: Site, options: dict[str, Any]) -> dict[str, Any]:
    """Saves the tensor where that is asked for; the values of the part that is."""
    part, save = options["part"], options["save"]
    if part is None and save is None:
        return {}
    from neuraldbg.capture.torch.recording import tensorfile
    from neuraldbg.capture.torch.shown import shown_tensor
    from neuraldbg.replay.recreate import TENSORS

    number, path = _place(site)
    tensor = tensorfile.read(folder / TENSORS)[0].get(f"{number}/{path}#{options['what']}")
    if tensor is None:
        raise NotRecorded(f"the {options['what']} of {site.path!r} is sparse or complex: only its shape is known here")
    if save is not None:
        _save(tensor, f"{site.path} {options['what']}", Path(save))
    return {} if part is None else shown_tensor(tensor, part)


def _save(tensor: Any, name: str, path: Path) -> None:
    from neuraldbg.capture.torch.recording import tensorfile

    try:
        if path.suffix == ".npy":
            import numpy as np

            np.save(path, (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy())
        else:  # whoever reads it goes by the shape alone, as safetensors has it
            tensorfile.write(path, {"tensor": tensor.contiguous()}, {"name": name})
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def _show(answer: dict[str, Any], site: Site | None, found: dict[str, Any] | None, options: dict[str, Any]) -> None:
    step = options["step"]
    for path in answer["touched"][:5]:
        click.echo(f"neuraldbg: the working directory is not as it was: {path}", err=True)
    if options["as_json"]:
        from neuraldbg.analysis.findings import strict

        told = {key: answer[key] for key in ("proof", "identical", "checked", "from_step", "varies")}
        layer = None if site is None else site.path
        shown = {"step": step, **told, "layer": layer, "what": options["what"], "tensor": found}
        click.echo(json.dumps(strict(shown)))
        return
    if site is not None and found is not None:
        from neuraldbg.surfaces.terminal.console import make_console
        from neuraldbg.surfaces.terminal.remade import render_tensor

        render_tensor(f"{site.path} {options['what']} at step {step}", found, make_console(sys.stdout))
    click.echo(f"Proof      {answer['proof']}: {answer['checked']} hashes compared, made again from step", nl=False)
    click.echo(f" {answer['from_step']}")
    if options["save"] is not None:
        click.echo(f"Saved      {options['save']}")
