"""Where figures come from, as options: networks with images, finished benchmarks."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tulip_ood.cli import options
from tulip_ood.cli.failing import UsageError, as_usage
from tulip_ood.cli.progress import make_progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tulip_ood.figures.canvas import Drawn
    from tulip_ood.figures.measured import MeasuredNetwork

__all__ = ["NetworkSource", "ready", "say", "with_networks"]

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for PNG, SVG and parquet.")]
Seed = Annotated[int, typer.Option(help="Of everything that is drawn at random.", min=0)]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="ROOT",
        help="OpenOOD's data folder, or one with sets.json (see tulip data check).",
    ),
]
Networks = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NETWORK]...", help="Networks: files or specs, a panel each."),
]
Checkpoint = Annotated[
    list[str] | None,
    typer.Option("--checkpoint", "--network", metavar="NETWORK", help="The same, by option."),
]
IdSet = Annotated[
    str | None,
    typer.Option("--id", help="The ID set; default: the one with as many classes."),
]
Limit = Annotated[
    int, typer.Option(min=2, max=10**9, help="Images of each set at most, a seeded subset.")
]
Samples = Annotated[int, typer.Option(min=1, help="M, the number of noisy passes.")]
Cache = Annotated[
    Path | None,
    typer.Option(help="Where passes are kept, so that they are made once; default: OUT/passes."),
]
Results = Annotated[
    list[str] | None,
    typer.Option(
        "--results", metavar="DIR", help="What tulip bench wrote to; repeat it for more ID sets."
    ),
]
Tuning = Annotated[
    list[str] | None,
    typer.Option("--tuning", metavar="FILE", help="What make evidence-tuning wrote; repeat it."),
]
SideFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--sides", metavar="FILE", help="Sides of A5 that were measured before; repeat it."
    ),
]


def say(drawn: "Drawn") -> None:
    """Tell what is in a figure and where it is.

    Example:
        >>> from tulip_ood.figures.canvas import Drawn
        >>> say(Drawn((), Path("a.parquet"), [], {}, ("A5 holds",)))
        A5 holds
        wrote a.parquet
    """
    for line in drawn.lines:
        typer.echo(line)
    for path in drawn.files:
        typer.echo(f"wrote {path}")


def ready(out: Path) -> None:
    """Whatever would be missing at the end is found out before the work.

    Example:
        >>> ready(Path("."))
    """
    options.check_folder(out, "--out")
    from tulip_ood.figures.canvas import need_matplotlib

    need_matplotlib()


@dataclass(frozen=True)
class NetworkSource:
    """Networks and images from the command line.

    Attributes:
        data: The benchmark root.
        networks: Specs.
        out: The figures' folder.
        id_set: The protocol, or None.
        limit: Images of each set.
        samples: M.
        cache: Where passes are kept.
        device: Where passes run.
        trust: Whether files that can run code may be opened.

    Example:
        >>> NetworkSource(None, ()).given
        False
    """

    data: str | None
    networks: tuple[str, ...]
    out: Path = Path("figures")
    id_set: str | None = None
    limit: int = 500
    samples: int = 10
    cache: Path | None = None
    device: str | None = None
    trust: bool = False

    @property
    def given(self) -> bool:
        """Whether there is anything."""
        return bool(self.data or self.networks)

    def need(self) -> str:
        """The root; refuses if it or the networks are missing."""
        if not self.data or not self.networks:
            raise UsageError(
                "this figure is drawn from passes of a network: give --data ROOT (see tulip data "
                "check) and --checkpoint FILE (see tulip train)"
            )
        return self.data

    def measure(
        self, epsilons: "Sequence[float]" = (), *, input_noise: bool = False
    ) -> "list[MeasuredNetwork]":
        """The passes of every network."""
        data = self.need()
        with as_usage():
            from tulip_ood.figures.measured import EPSILON, measure_networks

            options.check_device(self.device)
            cache = self.cache or self.out / "passes"
            typer.echo(f"passes are kept in {cache}", err=True)
            with make_progress() as bar:
                task = bar.add_task("looking at the data", total=None)
                return list(
                    measure_networks(
                        data,
                        self.networks,
                        cache=cache,
                        id_set=self.id_set,
                        epsilons=tuple(epsilons) or (EPSILON,),
                        n_samples=self.samples,
                        limit=self.limit,
                        input_noise=input_noise,
                        device=self.device,
                        trust=self.trust,
                        progress=lambda what, done, of: bar.update(
                            task, description=what, completed=done, total=of
                        ),
                    )
                )


def _network_source(
    networks: Networks = None,
    data: Data = None,
    checkpoint: Checkpoint = None,
    out: Out = Path("figures"),
    id_set: IdSet = None,
    limit: Limit = 500,
    samples: Samples = 10,
    cache: Cache = None,
    device: options.Device = None,
    trust: options.Trust = False,
) -> NetworkSource:
    named = (*(checkpoint or []), *(networks or []))
    return NetworkSource(data, named, out, id_set, limit, samples, cache, device, trust)


def with_networks(draw: Callable[..., None]) -> Callable[..., None]:
    """A command that takes a `NetworkSource`, as one with the options that make it.

    Args:
        draw: Its first argument is the source; its others become options too.

    Example:
        >>> import inspect
        >>> def count(source, seed: Seed = 0): print(len(source.networks))
        >>> command = with_networks(count)
        >>> list(inspect.signature(command).parameters)[:3]
        ['seed', 'networks', 'data']
    """
    own = list(inspect.signature(draw).parameters.values())[1:]
    shared = inspect.signature(_network_source).parameters

    def command(**given: Any) -> None:
        source = _network_source(**{name: given.pop(name) for name in shared})
        draw(source, **given)

    parameters = [*own, *shared.values()]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = draw.__doc__
    return command
