"""A fitted detector behind HTTP: the application, the gate for other applications, the monitor."""

from tulip_ood.serving.judging import Judge
from tulip_ood.serving.limits import Limits
from tulip_ood.serving.service import Service, application

__all__ = ["Judge", "Limits", "Service", "application"]
