"""A plan for a billion images, on paper: GPUs, hours, storage, money, and what breaks first.

    make evidence-cluster            # writes plan.json beside this file, among others

The arithmetic is here, the rates come from result files:

- a GPU: TULiP's twelve passes of the 32-pixel ResNet-18 on an H200 (../devices/result.json), and
  from there other networks in proportion to their multiplications: an extrapolation, marked so;
- a core that decodes, and the bytes of an image: JPEGs of 500 × 375 (../imagenet/result.json);
- the driver: scaling.json beside this file.

Prices are round numbers to be replaced by one's own.
"""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
IMAGES = 1_000_000_000
GPUS = (8, 64)
GMACS = {  # of one pass for one image
    "ResNet-18, 32 px (measured)": 0.556,
    "ResNet-50, 224 px": 4.09,
    "ViT-B/16, 224 px": 16.9,
}
PRICES = {"gpu_hour": 3.0, "core_hour": 0.04, "gb_month": 0.023}  # dollars
HELD_DRIVER = 64e9  # bytes of memory of the machine that the driver runs on
NETWORK = 1.25e9  # bytes/s into one machine: 10 Gbit/s


def main() -> None:
    (HERE / "plan.json").write_text(json.dumps(plan(), indent=1) + "\n")


def read(path: str) -> Any:
    return json.loads((HERE / path).read_text())


def rates() -> dict[str, float]:
    """What was measured, for one of each."""
    gpu = read("../devices/result.json")["scores"]
    plain = next(row for row in gpu if row["detector"] == "fitted there, float32")
    images = read("../imagenet/result.json")
    decode = images["networks"]["small"]["alone"]["decode"] / images["machine"]["decoding_threads"]
    driver = read("scaling.json")["driver"]
    spent = driver["cpu_seconds_per_million"]
    return {
        "images_per_s_of_a_gpu": 1000 / plain["seconds_for_1000_images"],
        "images_per_s_of_a_decoding_core": decode,
        "bytes_of_an_image": 1000 * images["images"]["kb_mean"],
        "bytes_of_a_row": driver["bytes_written_per_row"],
        "bytes_of_a_path": driver["bytes_held_per_path"],
        "rows_per_s_of_the_driver": 1e6 / (spent["hand_out_paths"] + spent["let_parts_appear"]),
        "seconds_to_check_a_million": spent["check_at_the_end"],
    }


def plan() -> dict[str, Any]:
    found = rates()
    return {
        "images": IMAGES,
        "rates": {name: round(rate, 2) for name, rate in found.items()},
        "prices": PRICES,
        "storage": storage(found),
        "networks": [
            network(name, gmacs, gpus, found) for name, gmacs in GMACS.items() for gpus in GPUS
        ],
        "breaks": breaks(found),
    }


def storage(found: dict[str, float]) -> dict[str, float]:
    images, table = IMAGES * found["bytes_of_an_image"], IMAGES * found["bytes_of_a_row"]
    return {
        "images_tb": round(images / 1e12, 1),
        "table_gb": round(table / 1e9, 1),
        "dollars_a_month": round(PRICES["gb_month"] * (images + table) / 1e9),
    }


def network(name: str, gmacs: float, gpus: int, found: dict[str, float]) -> dict[str, Any]:
    """One network on a number of GPUs, with as many cores as keep them busy."""
    measured = GMACS["ResNet-18, 32 px (measured)"]
    rate = found["images_per_s_of_a_gpu"] * measured / gmacs * gpus
    hours = IMAGES / rate / 3600
    cores = rate / found["images_per_s_of_a_decoding_core"]
    dollars = hours * (gpus * PRICES["gpu_hour"] + cores * PRICES["core_hour"])
    return {
        "network": name,
        "gpus": gpus,
        "images_per_s": round(rate),
        "hours": round(hours, 1),
        "decoding_cores": round(cores),
        "gbit_per_s_read": round(8 * rate * found["bytes_of_an_image"] / 1e9, 1),
        "dollars": round(dollars, -1),
    }


def breaks(found: dict[str, float]) -> dict[str, float]:
    """Where each thing ends that there is only one of."""
    return {
        "paths_that_fit_the_driver": round(HELD_DRIVER / found["bytes_of_a_path"], -6),
        "images_per_s_that_one_machine_can_read": round(NETWORK / found["bytes_of_an_image"]),
        "images_per_s_that_the_driver_can_hand_out": round(found["rows_per_s_of_the_driver"], -3),
        "hours_to_check_the_table": round(
            IMAGES / 1e6 * found["seconds_to_check_a_million"] / 3600, 2
        ),
    }


if __name__ == "__main__":
    main()
