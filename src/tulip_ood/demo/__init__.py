"""`tulip demo`: the main job on an embedded default, offline, in well under 90 seconds."""

from tulip_ood.demo.run import METHODS, DemoResult, run_demo

__all__ = ["METHODS", "DemoResult", "run_demo"]
