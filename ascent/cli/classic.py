"""`ascent classic`: classical reinforcement learning. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ascent.cli.help import SectionedGroup, examples
from ascent.distribution import install_hint

if TYPE_CHECKING:
    from ascent.classic.estimation import Report
    from ascent.classic.maze import Maze

app = typer.Typer(
    help="Classical RL: maze, Q-learning, DQN, policy gradient, TRPO, PPO.",
    cls=SectionedGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
)

METHODS = {"dqn": "dqn", "policy-gradient": "policy_gradient", "trpo": "trpo", "ppo": "ppo"}

Settings = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Settings of the method, such as steps=20000."),
]
Env = Annotated[
    str, typer.Option(help="A Gymnasium environment, such as CartPole-v1 or ascent/Maze-v0.")
]
Seed = Annotated[int, typer.Option(help="The seed of the run.")]
Episodes = Annotated[
    int, typer.Option(help="Fresh episodes on which the final policy is evaluated.")
]
MapFile = Annotated[
    Path | None, typer.Option("--map", help="A text file with a maze of S . # G T; default 2x3.")
]
Slip = Annotated[float, typer.Option(help="Chance that a move goes sideways.")]
Gamma = Annotated[float, typer.Option(help="Discount.")]
FigureFile = Annotated[Path | None, typer.Option(help="Also write a figure to this .png file.")]


@app.command("maze", epilog=examples("ascent classic maze --slip 0.1"))
def maze(
    map_file: MapFile = None,
    slip: Slip = 0.0,
    gamma: Gamma = 0.99,
    figure: FigureFile = None,
    random: bool = False,
) -> None:
    """Print exact values of a maze for the best or a random policy."""
    needs_gymnasium()
    from ascent.classic.exact import greedy_policy, optimal_values, policy_values
    from ascent.classic.maze import draw_arrows, draw_text

    env = open_maze(map_file, slip)
    model = env.model()
    policy_SA = greedy_policy(optimal_values(model, gamma=gamma).q_SA)
    if random:
        policy_SA = policy_SA * 0 + 0.25
    values = policy_values(model, policy_SA, gamma=gamma)
    typer.echo(draw_text(env.grid, agent=env.grid.start))
    typer.echo(f"\nvalues of the {'random' if random else 'best'} policy at gamma {gamma:g}")
    for row in values.v_S.reshape(env.grid.height, env.grid.width):
        typer.echo(" ".join(f"{value:8.3f}" for value in row))
    if not random:
        typer.echo(f"\n{draw_arrows(env.grid, policy_SA)}")
    if figure is not None:
        from ascent.classic.plots import save, value_map

        title = f"{'random' if random else 'best'} policy, gamma {gamma:g}"
        typer.echo(f"wrote {save(value_map(env.grid, values, policy_SA, title=title), figure)}")


@app.command("q-learning", epilog=examples("ascent classic q-learning steps=20000 --seeds 3"))
def q_learning(
    settings: Settings = None,
    map_file: MapFile = None,
    slip: Slip = 0.0,
    seeds: Annotated[int, typer.Option(help="How many runs, from seed 0 on.")] = 1,
    figure: FigureFile = None,
) -> None:
    """Train Q-learning on a maze; compare with the exact Q*."""
    needs_gymnasium()
    from ascent.classic import q_learning as method
    from ascent.classic.exact import optimal_values

    chosen, env = choose_settings(method.Settings, settings or []), open_maze(map_file, slip)
    options = {"text": "\n".join(env.grid.rows), "slip": slip}
    exact = optimal_values(env.model(), gamma=chosen.gamma)
    results = []
    for seed in range(at_least_one(seeds)):
        result = method.train("ascent/Maze-v0", chosen, seed=seed, env_options=options)
        error = result.policy.distance(exact.q_SA)  # type: ignore[attr-defined]
        results.append(result)
        typer.echo(
            f"seed {seed}: largest |Q - Q*| {error:.2e} after {chosen.steps} steps, {result.seconds:.1f} s"
        )
    if figure is not None:
        from ascent.classic.plots import save, table_errors

        typer.echo(f"wrote {save(table_errors(results, exact.q_SA), figure)}")


@app.command("dqn", epilog=examples("ascent classic dqn --env CartPole-v1 steps=20000"))
def dqn(
    settings: Settings = None, env: Env = "CartPole-v1", seed: Seed = 0, episodes: Episodes = 100
) -> None:
    """Train DQN, with a target network and replay."""
    train_and_evaluate("dqn", env, seed, episodes, settings)


@app.command("policy-gradient", epilog=examples("ascent classic policy-gradient weight=gae"))
def policy_gradient(
    settings: Settings = None, env: Env = "CartPole-v1", seed: Seed = 0, episodes: Episodes = 100
) -> None:
    """Train a policy gradient, such as weight=gae."""
    train_and_evaluate("policy-gradient", env, seed, episodes, settings)


@app.command("trpo", epilog=examples("ascent classic trpo --seed 1"))
def trpo(
    settings: Settings = None, env: Env = "CartPole-v1", seed: Seed = 0, episodes: Episodes = 100
) -> None:
    """Train TRPO: natural gradient with a line search."""
    train_and_evaluate("trpo", env, seed, episodes, settings)


@app.command("ppo", epilog=examples("ascent classic ppo steps=50000"))
def ppo(
    settings: Settings = None, env: Env = "CartPole-v1", seed: Seed = 0, episodes: Episodes = 100
) -> None:
    """Train PPO: clipped, unclipped, or with a KL penalty."""
    train_and_evaluate("ppo", env, seed, episodes, settings)


@app.command(
    "compare", epilog=examples("ascent classic compare dqn ppo --seeds 3 --figure curves.png")
)
def compare(
    methods: Annotated[
        list[str] | None, typer.Argument(help="Any of: " + ", ".join(METHODS))
    ] = None,
    env: Env = "CartPole-v1",
    seeds: Annotated[int, typer.Option(help="Runs of each method, from seed 0 on.")] = 1,
    steps: Annotated[int, typer.Option(help="Environment steps of each run.")] = 20_000,
    episodes: Episodes = 100,
    figure: FigureFile = None,
) -> None:
    """Compare methods on one environment, with equal steps.

    Prints a table; --figure also draws learning curves. All methods use their default settings.
    """
    needs_gymnasium()
    import statistics

    runs: dict[str, list[Any]] = {}
    typer.echo(
        f"{'method':16} {'final return':>14} {'worst seed':>11} {'seconds':>8}   {env}, {steps} steps"
    )
    for name in methods or list(METHODS):
        method = load_method(name)
        runs[name] = [
            method.train(env, method.Settings(steps=steps), seed=seed)
            for seed in range(at_least_one(seeds))
        ]
        finals = [
            fresh_return(result.policy, env, episodes, seed)
            for seed, result in enumerate(runs[name])
        ]
        seconds = sum(result.seconds for result in runs[name])
        typer.echo(f"{name:16} {statistics.mean(finals):14.1f} {min(finals):11.1f} {seconds:8.1f}")
    if figure is not None:
        from ascent.classic.curves import plot_learning

        plot_learning(runs, figure, title=env)
        typer.echo(f"wrote {figure}")


@app.command("estimation", epilog=examples("ascent classic estimation --samples 20"))
def estimation(
    samples: Annotated[int, typer.Option(help="Draws in one estimate; an even number.")] = 10,
    repetitions: Annotated[int, typer.Option(help="How often each estimate is repeated.")] = 20_000,
    seed: Seed = 0,
) -> None:
    """Measure Monte Carlo estimators against exact values.

    KL, control variates, antithetic pairs, baselines, importance sampling, off-policy values.
    """
    from ascent.classic.estimation import demonstrations

    for name, reports in demonstrations(
        samples=samples, repetitions=repetitions, seed=seed
    ).items():
        typer.echo(f"{name}, exact {reports[0].exact:.4f}, {samples} samples")
        for line in report_lines(reports):
            typer.echo(f"  {line}")


@app.command(
    "plots", epilog=examples("ascent classic plots --list", "ascent classic plots maze-best")
)
def plots(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which figures; all of them if none is named.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("figures"),
    show: Annotated[bool, typer.Option("--list", help="List the figures and stop.")] = False,
) -> None:
    """Draw the figures of docs/foundations."""
    needs_gymnasium()
    from ascent.classic.figures import FIGURES, draw

    if show:
        for name, figure in FIGURES.items():
            typer.echo(f"{name:18} {figure.summary}")
        return
    for name in names or list(FIGURES):
        path = draw(name, out)
        typer.echo(f"wrote {path} ({path.stat().st_size / 1000:.0f} kB)")


def train_and_evaluate(
    name: str, env: str, seed: int, episodes: int, overrides: list[str] | None
) -> None:
    """Train once and evaluate the final policy on fresh episodes."""
    needs_gymnasium()
    method = load_method(name)
    chosen = choose_settings(method.Settings, overrides or [])
    typer.echo(f"{name} on {env}, seed {seed}: {chosen}")
    result = method.train(env, chosen, seed=seed)
    last = result.returns[-20:]
    if last:
        typer.echo(f"last {len(last)} training episodes: mean return {sum(last) / len(last):.1f}")
    final = fresh_return(result.policy, env, episodes, seed)
    typer.echo(
        f"final policy, {episodes} fresh episodes: mean return {final:.1f}; {result.seconds:.1f} s of training"
    )


def load_method(name: str) -> Any:
    from ascent.cells import nearest

    if name not in METHODS:
        raise ValueError(f"no method is called {name!r}; {nearest(name, METHODS)}")
    return importlib.import_module(f"ascent.classic.{METHODS[name]}")


def choose_settings(kind: Any, overrides: list[str]) -> Any:
    """A settings dataclass with KEY=VALUE overrides, each read as the type of its field."""
    import ast
    import dataclasses

    from ascent.cells import nearest

    defaults = {field.name: getattr(kind(), field.name) for field in dataclasses.fields(kind)}
    given: dict[str, Any] = {}
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{text!r} is not KEY=VALUE; write for example steps=20000")
        if name not in defaults:
            raise ValueError(f"there is no setting {name!r}; {nearest(name, defaults)}")
        try:
            spelled = {"true": "True", "false": "False"}.get(value, value)
            read = value if isinstance(defaults[name], str) else ast.literal_eval(spelled)
        except (ValueError, SyntaxError):
            raise ValueError(
                f"{name}={value!r} cannot be read; its default is {defaults[name]!r}"
            ) from None
        given[name] = as_default_type(name, read, defaults[name])
    return kind(**given)


def as_default_type(name: str, value: Any, default: Any) -> Any:
    """The value in the type of its default; integers are accepted for floats, anything else is a ValueError."""
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(default, tuple) and isinstance(value, int):
        return (value,)
    if default is not None and type(value) is not type(default):
        raise ValueError(f"{name}={value!r}, but it must be like its default, {default!r}")
    return value


def fresh_return(policy: Any, env: str, episodes: int, seed: int) -> float:
    """Mean return on episodes with seeds that training does not use."""
    from ascent.classic.result import evaluate

    returns = evaluate(policy, env, episodes, 1_000_000 + 1_000 * seed)
    return sum(returns) / len(returns)


def report_lines(reports: list[Report]) -> list[str]:
    width = max(len(row.name) for row in reports)
    return [
        f"{row.name:{width}}  mean {row.mean:8.4f}  bias {row.bias:+8.4f}  std {row.std:7.4f}"
        for row in reports
    ]


def open_maze(map_file: Path | None, slip: float) -> Maze:
    from ascent.classic.maze import SMALL, Maze

    if map_file is not None and not map_file.is_file():
        raise ValueError(f"--map {map_file} is not a file; draw a maze of S . # G T in a text file")
    return Maze(SMALL if map_file is None else map_file.read_text(), slip=slip)


def at_least_one(seeds: int) -> int:
    if seeds < 1:
        raise ValueError(f"seeds={seeds}, but at least 1 run is needed")
    return seeds


def needs_gymnasium() -> None:
    import importlib.util

    if importlib.util.find_spec("gymnasium") is None:
        raise ValueError(
            f"ascent classic needs Gymnasium, which is not installed; run: {install_hint('classic')}"
        )
