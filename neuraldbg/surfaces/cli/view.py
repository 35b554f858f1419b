"""neural view: serve runs, finished, crashed or running."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from neuraldbg.config import Config


@click.command(short_help="Serve runs to a browser and over REST.")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--host", metavar="ADDR", help="Address to serve on; off loopback a token is needed.")
@click.option("--port", metavar="N", help="Port; if taken, the next free one.  [default: 8050]")
@click.option("--theme", metavar="NAME", help="Colours of the page: dark, light, auto.")
def command(runs: tuple[str, ...], host: str | None, port: str | None, theme: str | None) -> int:
    """Serve each RUN (a directory, a zip, or a name in ./neuraldbg_runs) until Ctrl-C.

    Without a RUN: the newest one of this folder that is still going, else the newest.
    """
    from neuraldbg.config import load_config
    from neuraldbg.surfaces.cli.runs import find_run, newest_live_run

    config = load_config({"host": host, "port": port, "dashboard.theme": theme})
    for note in config.notes:
        click.echo(f"neuraldbg: {note}", err=True)
    paths = [find_run(name) for name in runs] or [newest_live_run() or find_run(None)]
    return serve(paths, config)


def serve(paths: list[Path], config: Config) -> int:
    """Until Ctrl-C."""
    from neuraldbg.surfaces.web.asking import Settings
    from neuraldbg.surfaces.web.doorway import Doorway, answer_promptly
    from neuraldbg.surfaces.web.serving import Service

    door = Doorway(config.host, config.port)
    answer_promptly()
    try:
        page = config.dashboard
        settings = Settings(page.refresh_rate, config.history.inspector, page.max_history, page.theme, page.charts)
        service = Service(door, paths, settings)
        service.open()
        door.tell(paths[0])  # of several, the one that is meant where a request names none
        click.echo(f"neuraldbg: {', '.join(path.name for path in paths)}: {door.line} (Ctrl-C ends it)", err=True)
        service.run()
    except KeyboardInterrupt:
        pass  # that is how it is ended
    finally:
        door.close()
    return 0
