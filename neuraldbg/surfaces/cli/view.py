"""neural view: serve runs, finished, crashed or running."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
@click.option("--behind-proxy", is_flag=True, help="Requests come through a tunnel: all need the token, by any name.")
def command(runs: tuple[str, ...], host: str | None, port: str | None, theme: str | None, behind_proxy: bool) -> int:
    """Serve each RUN (a directory, a zip, a name in ./neuraldbg_runs, a Parquet data set or its URL) until Ctrl-C.

    Without a RUN: the newest one of this folder that is still going, else the newest.
    """
    from neuraldbg.config import load_config
    from neuraldbg.surfaces.cli.runs import find_run, newest_live_run

    config = load_config({"host": host, "port": port, "dashboard.theme": theme})
    for note in config.notes:
        click.echo(f"neuraldbg: {note}", err=True)
    paths = [find_run(name) for name in runs] or [newest_live_run() or find_run(None)]
    with _news_of([name for name in runs if "://" in name]):
        return serve(paths, config, behind_proxy=behind_proxy)


@contextmanager
def _news_of(urls: list[str]) -> Iterator[None]:
    """While we serve, what is shipped of a run that goes on elsewhere is fetched."""
    import threading

    from neuraldbg.surfaces.cli.runs import run_cache

    over, threads = threading.Event(), []
    for url in urls:
        from neuraldbg.store.cache import keep_fetching

        threads.append(threading.Thread(target=keep_fetching, args=(run_cache(), url, over.wait, _say)))
        threads[-1].start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _say(text: str) -> None:
    click.echo(f"neuraldbg: {text}", err=True)


def serve(paths: list[Path], config: Config, *, behind_proxy: bool = False) -> int:
    """Until Ctrl-C."""
    from neuraldbg.surfaces.web.asking import Settings
    from neuraldbg.surfaces.web.doorway import Doorway, answer_promptly
    from neuraldbg.surfaces.web.serving import Service

    door = Doorway(config.host, config.port, behind_proxy=behind_proxy)
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
