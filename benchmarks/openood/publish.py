"""From the folder of a benchmark to what is committed: numbers, environment, tables.

python benchmarks/openood/publish.py FOLDER benchmarks/results/cifar10 --command "…"
"""

import argparse
from pathlib import Path

from tulip_ood.benchmark.bench_loading import load_benchmark
from tulip_ood.benchmark.leaderboard import leaderboard_csv
from tulip_ood.benchmark.paper_table import paper_table
from tulip_ood.benchmark.pooled import pool
from tulip_ood.benchmark.set_tables import per_set_table, shift_table
from tulip_ood.benchmark.tidy import tidy
from tulip_ood.benchmark.tidy_file import write_parquet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("out", type=Path)
    parser.add_argument("--command", required=True, help="that made the folder")
    parser.add_argument("--resamples", type=int, default=500)
    arguments = parser.parse_args()
    found = load_benchmark(arguments.folder)
    arguments.out.mkdir(parents=True, exist_ok=True)
    environment = {**found.environment, "command": arguments.command}
    environment["skipped"] = dict(found.skipped)
    write_parquet(tidy(found), arguments.out / "results.parquet", environment)
    (arguments.out / "leaderboard.csv").write_text(leaderboard_csv(found))
    for track in sorted({run.track for run in found.runs}):
        pooled = pool(found, track, resamples=arguments.resamples)
        texts = [paper_table(found, track, pooled=pooled, format="markdown")]
        texts.append(per_set_table(found, track, format="markdown"))
        if found.in_group("shifted"):
            texts.append(shift_table(found, track, format="markdown"))
        (arguments.out / f"tables-{track}.md").write_text("\n\n".join(texts) + "\n")
        print(track, len(found.of(track)), "runs")


if __name__ == "__main__":
    main()
