"""The tables of docs/cluster.md, from the result files under benchmarks/cluster/."""

from collections.abc import Callable

from reading import read, table

__all__ = ["CLUSTER_TABLES"]


def cluster_faults() -> str:
    """What died in the middle of a job on Ray, and what became of the table."""
    found = read("cluster/faults.json")
    killed = found["job"]["kept_rows_when_killed"]
    when = " and ".join(f"{rows:,}" for rows in killed)
    words = {
        "undisturbed": "nothing (against the local engine)",
        "workers": f"{found['workers']['killed']} times a worker, one after another",
        "node": "one of two nodes, with its workers",
        "job": f"the whole job, {len(killed)} times (with {when} rows done)",
    }
    rows = []
    for name, what in words.items():
        row = found[name]
        once = f"{row['rows']:,}, {'each once' if row['every_row_once'] else 'NOT each once'}"
        apart = f"{row['largest_difference_of_the_range']:.0e}".replace("0e+00", "0")
        rows.append([what, once, apart, f"{row['seconds']:.0f}"])
    return table(["what was killed", "rows", "scores apart, of their range", "seconds"], rows)


def cluster_bad() -> str:
    """What becomes of files that are not what they seem."""
    told = read("cluster/bad_input.json")["kinds"]["told"]
    return table(["file", "row"], [[f"`{name}`", what] for name, what in sorted(told.items())])


def cluster_plan() -> str:
    """A billion images."""
    head = ["network", "GPUs", "images/s", "hours", "decoding cores", "Gbit/s", "dollars"]
    keys = ("gpus", "images_per_s", "hours", "decoding_cores", "gbit_per_s_read", "dollars")
    rows = [
        [row["network"], *(f"{row[key]:,.{int(key == 'hours')}f}" for key in keys)]
        for row in read("cluster/plan.json")["networks"]
    ]
    return table(head, rows)


def cluster_breaks() -> str:
    """Where each thing ends that there is only one of."""
    plan = read("cluster/plan.json")
    ends, storage = plan["breaks"], plan["storage"]
    rows = [
        [
            "reading over one machine's network (10 Gbit/s)",
            f"{ends['images_per_s_that_one_machine_can_read']:,} images/s",
            "several machines with a few GPUs each, near the images",
        ],
        [
            "the driver's list of paths (64 GB of memory)",
            f"{ends['paths_that_fit_the_driver'] / 1e6:,.0f} million files",
            "parquet: of it the driver knows row counts alone",
        ],
        [
            "a million parts in one folder",
            f"{ends['hours_to_check_the_table']:.1f} h to check them, and again after a kill",
            "`--part-rows 4096`: a quarter of them",
        ],
        [
            "one driver that hands out paths and puts parts in place",
            f"{ends['images_per_s_that_the_driver_can_hand_out']:,.0f} images/s",
            "not reached; else several jobs, each with its share of the lake",
        ],
        [
            "storage",
            f"{storage['images_tb']:,} TB of images, {storage['table_gb']:,} GB of table",
            f"{storage['dollars_a_month']:,} dollars a month, nearly all for the images",
        ],
    ]
    return table(["what", "where it ends", "what then"], rows)


CLUSTER_TABLES: dict[str, Callable[[], str]] = {
    "cluster-faults": cluster_faults,
    "cluster-bad": cluster_bad,
    "cluster-plan": cluster_plan,
    "cluster-breaks": cluster_breaks,
}
