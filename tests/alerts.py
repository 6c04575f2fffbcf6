"""Alerts that reach nobody, for tests of what raises them."""

import httpx

from redrive.activities.alerts import AlertActivities
from redrive.settings import AlertSettings

SILENT = AlertActivities(httpx.AsyncClient(), AlertSettings())
